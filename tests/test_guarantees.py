"""The page of guarantees names tests, options and commands that exist."""

import re
from dataclasses import fields
from pathlib import Path

from penstock.nsqd.options import NsqdOptions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/background/guarantees.md").read_text(encoding="utf-8")
OURS = PAGE.partition("## Beside others")[0]


def test_every_guarantee_names_a_test_that_exists() -> None:
    table = OURS.partition("## Guaranteed")[2].partition("## Not guaranteed")[0]
    rows = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("| ")][1:]
    tests = [re.findall(r"`([^`]+)`", cell) for cell in rows]

    assert len(rows) > 15
    assert all(tests)
    assert [] == [each for every in tests for each in every if not (ROOT / each).exists()]


def test_every_option_on_the_page_exists() -> None:
    options = {field.name.removesuffix("_ns").replace("_", "-") for field in fields(NsqdOptions)}

    assert [] == [name for name in re.findall(r"--([a-z][a-z-]+)", OURS) if name not in options]


def test_every_command_for_a_long_run_exists() -> None:
    commands = re.findall(r"^ {4}([A-Z_]+)=\d+ \S+ (tests/\S+)", PAGE, re.MULTILINE)

    assert len(commands) == 3
    for variable, test in commands:
        assert f'environ.get("{variable}"' in (ROOT / test).read_text(encoding="utf-8")
