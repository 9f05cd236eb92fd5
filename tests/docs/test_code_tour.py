"""The tour of the code names only modules, classes and functions that exist, and stays short."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "background" / "code_tour.md"
SOURCES = (ROOT / "src" / "penstock", ROOT / "src")

FILES_MAX = 12
PUB_HOPS_MAX = 10

_SECTION = re.compile(r"^## (.+)\n((?:(?!^## ).*\n)*)", re.MULTILINE)
_HOP = re.compile(r"^\d+\. `([\w.]+)`", re.MULTILINE)
_NAME = re.compile(r"`(\w+(?:\.\w+)+)`")

SECTIONS: dict[str, str] = dict(_SECTION.findall(PAGE.read_text(encoding="utf-8")))


def module_of(name: str) -> tuple[Path, list[str]]:
    """The file of a dotted name, and the rest of the name."""
    parts = name.split(".")
    for source in SOURCES:
        for count in range(len(parts), 0, -1):
            path = source.joinpath(*parts[:count]).with_suffix(".py")
            if path.is_file():
                return path, parts[count:]
    raise AssertionError(f"no module for {name}")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_defined(names: list[str], body: list[ast.stmt]) -> bool:
    if not names:
        return True
    return any(
        isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and each.name == names[0]
        and is_defined(names[1:], each.body)
        for each in body
    )


def names_of_code(text: str) -> list[str]:
    """Dotted names; not names of files such as `committed.json`."""
    return [name for name in _NAME.findall(text) if not name.endswith((".json", ".dat", ".py"))]


def test_the_page_follows_eleven_operations() -> None:
    assert 11 == len(SECTIONS)
    assert all(_HOP.findall(text) for text in SECTIONS.values())


@pytest.mark.parametrize("title", SECTIONS)
def test_every_name_exists(title: str) -> None:
    for name in names_of_code(SECTIONS[title]):
        path, rest = module_of(name)
        assert is_defined(rest, tree_of(path).body), name


@pytest.mark.parametrize("title", SECTIONS)
def test_every_step_names_a_function_first(title: str) -> None:
    steps = re.findall(r"^\d+\.", SECTIONS[title], re.MULTILINE)
    hops = _HOP.findall(SECTIONS[title])

    assert len(steps) == len(hops)
    assert all(module_of(hop)[1] for hop in hops)


@pytest.mark.parametrize("title", SECTIONS)
def test_an_operation_is_in_few_files(title: str) -> None:
    assert FILES_MAX >= len({module_of(hop)[0] for hop in _HOP.findall(SECTIONS[title])})


def test_pub_takes_few_hops() -> None:
    assert PUB_HOPS_MAX >= len(_HOP.findall(SECTIONS["PUB"]))
