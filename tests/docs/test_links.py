"""Links on all pages, also from README and examples, lead to existing files and headings."""

import re
from functools import cache
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, pages

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    assert [] == [link for link in links(page) if not leads_somewhere(page, link)]


def test_every_screenshot_is_taken_by_make_pictures() -> None:
    """`make pictures` takes screenshots; plots are made from their data."""
    script = (ROOT / "scripts" / "pictures.py").read_text(encoding="utf-8")
    taken = set(re.findall(r'"([\w-]+)(?:\.png)?"', script))
    there = {path.stem for path in (ROOT / "docs" / "images").glob("*.png")}

    assert set() == there - taken


def links(page: Path) -> list[str]:
    """Links to our own files."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8")))
    found = [link or image for link, image in _LINK.findall(prose)]
    return [link for link in found if "://" not in link]


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of the headings: lower case, words joined by hyphens, no other characters."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = (heading.lower().replace(" ", "-") for heading in _HEADING.findall(text))
    return {re.sub(r"[^\w-]", "", heading) for heading in headings}
