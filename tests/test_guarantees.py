"""The page of what is promised: what it says to be shown is shown, and what it names is there."""

import re
from dataclasses import fields
from pathlib import Path

from penstock.nsqd.options import NsqdOptions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/background/guarantees.md").read_text(encoding="utf-8")
OURS = PAGE.partition("## Beside others")[0]


def test_every_promise_is_shown_by_something_that_is_there() -> None:
    table = OURS.partition("## Promised")[2].partition("## Not promised")[0]
    rows = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("| ")][1:]
    shown_by = [re.findall(r"`([^`]+)`", cell) for cell in rows]

    assert len(rows) > 15
    assert all(shown_by)
    assert [] == [each for every in shown_by for each in every if not (ROOT / each).exists()]


def test_every_option_that_it_names_is_nsqds() -> None:
    options = {field.name.removesuffix("_ns").replace("_", "-") for field in fields(NsqdOptions)}

    assert [] == [name for name in re.findall(r"--([a-z][a-z-]+)", OURS) if name not in options]


def test_every_long_version_that_it_shows_is_one() -> None:
    commands = re.findall(r"^ {4}([A-Z_]+)=\d+ \S+ (tests/\S+)", PAGE, re.MULTILINE)

    assert len(commands) == 3
    for variable, test in commands:
        assert f'environ.get("{variable}"' in (ROOT / test).read_text(encoding="utf-8")
