"""The log lines on how long requests take."""

from penstock.common.logs import Logger
from penstock.tools.timings import Timings


def lines_of(every: int, *milliseconds: float) -> list[str]:
    lines: list[str] = []
    timings = Timings("aggregate", every, Logger("", write=lines.append))
    for each in milliseconds:
        timings.add(each / 1000)
    return [line.split("INFO: ")[1] for line in lines]


def test_there_is_a_line_for_every_so_many() -> None:
    expected = ["[aggregate]: finished 2 - 99th: 3.00ms - 95th: 3.00ms - avg: 2.00ms\n"] * 2

    assert expected == lines_of(2, 1, 3, 3, 1, 5)


def test_percentiles_are_those_of_nsq() -> None:
    expected = ["[aggregate]: finished 100 - 99th: 100.00ms - 95th: 97.00ms - avg: 50.50ms\n"]

    assert expected == lines_of(100, *range(1, 101))


def test_none_at_all_can_be_had_too() -> None:
    assert [] == lines_of(0, 1, 2, 3)
