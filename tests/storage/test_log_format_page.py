"""docs/reference/log_format.md matches the code."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from penstock.storage import batch, cursor_journal, data_dir, index, layout

PAGE = (Path(__file__).parents[2] / "docs/reference/log_format.md").read_text()


def table_in(text: str) -> list[tuple[str, ...]]:
    """The rows of the `offset size field` tables: offset, size and name."""
    rows = re.findall(r"^ *(\d+) +(\d+)? +([a-z]\w*(?:, one after the other)?)", text, re.MULTILINE)
    return [tuple(row) for row in rows]


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "module"),
    [("Segments", batch), ("Index files", index), ("The journal of the channels", cursor_journal)],
)
def test_tables_match_the_modules(title: str, module: ModuleType) -> None:
    assert module.__doc__ is not None
    described = table_in(module.__doc__)

    assert len(described) > 5
    assert described == table_in(section(title))


@pytest.mark.parametrize(
    ("title", "magic"),
    [
        ("Segments", batch.MAGIC),
        ("Segments", batch.SEGMENT_MAGIC),
        ("Index files", index._MAGIC),
        ("The journal of the channels", cursor_journal._MAGIC),
    ],
)
def test_magics_match_the_modules(title: str, magic: bytes) -> None:
    assert magic.hex(" ") in section(title)


def test_changes_match_the_journal() -> None:
    assert cursor_journal.__doc__ is not None
    rows = re.findall(r"^ +\d  [A-Z]\w+.*$", cursor_journal.__doc__, re.MULTILINE)

    assert 8 == len(rows)
    for row in rows:
        assert row.strip() in section("The journal of the channels")


def test_files_match_the_layout() -> None:
    assert layout.__doc__ is not None
    described = re.findall(r"^ +\S+ {2,}.*$", layout.__doc__, re.MULTILINE)

    assert 12 == len(described)
    for line in described:
        assert line.strip() in section("Files")


def test_format_version_is_current() -> None:
    assert f"format **{data_dir.FORMAT_VERSION}**" in PAGE
    assert data_dir.__doc__ is not None
    example = re.findall(r"^    (.*)$", data_dir.__doc__, re.MULTILINE)
    assert "\n".join(example) in section("The format file")
