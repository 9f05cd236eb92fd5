"""The benchmark of the log runs, and compares its figures with its goals."""

import pytest
from bench.log_bench import Row, main, rows

from bench import log_bench


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"MESSAGES": 2_000, "ROUNDS": 2, "APPENDS": 20, "SINGLES": 100, "TOPICS": 3}
    for name, size in sizes.items():
        monkeypatch.setattr(log_bench, name, size)


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("a", 1.0, "s"), None),
        (Row("a", 2.0, "msgs/s", goal=1.0), True),
        (Row("a", 2.0, "msgs/s", goal=3.0), False),
        (Row("a", 2.0, "s", goal=3.0, more_is_better=False), True),
        (Row("a", 2.0, "s", goal=1.0, more_is_better=False), False),
    ],
)
def test_a_goal_is_met_or_not(row: Row, met: bool | None) -> None:
    assert met is row.met


def test_every_row_is_measured() -> None:
    measured = rows()

    assert 14 == len({row.name for row in measured})
    assert all(row.figure > 0 for row in measured if "memory" not in row.name)


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() in (0, 1)
    assert "bare write" in capsys.readouterr().out
