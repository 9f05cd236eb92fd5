"""A soak of seconds: does it run, and what does it make of what it sees.

`make soak` is the long one."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from soak.__main__ import main
from soak.load import Account, Ledger, body_of
from soak.plot import draw
from soak.samples import Sample, worst_bound_ms
from soak.verdict import judge_account, judge_samples


def sample(at: float, **changes: float) -> Sample:
    figures = {"rss_mb": 50.0, "disk_mb": 10.0, "late_ms": 5.0, "starved_ms": 0.0, **changes}
    return Sample(at=at, handles=int(figures.pop("handles", 40)), **figures)


@pytest.mark.slow
def test_a_short_one_loses_nothing_and_draws_what_it_saw(tmp_path: Path) -> None:
    plot = tmp_path / "soak.svg"
    ended = CliRunner().invoke(main, ["--minutes=0.1", "--rate=500", f"--plot={plot}"])

    assert 2 == ended.output.count("messages acknowledged, 0 of them lost"), ended.output
    assert "<svg" in plot.read_text(encoding="utf-8")


class TestVerdict:
    def test_what_stays_as_it_was_is_good(self) -> None:
        findings = judge_samples([sample(at) for at in range(1200)], 1200)

        assert [True] * 4 == [finding.is_good for finding in findings]
        assert findings[0].text == (
            "resident memory: 50.0 MB after minute 5, 50.0 at the end (+0.0%)"
        )

    @pytest.mark.parametrize(
        ("name", "value"), [("rss_mb", 56.0), ("handles", 60), ("disk_mb", 30.0), ("late_ms", 50.0)]
    )
    def test_what_has_grown_is_wrong(self, name: str, value: float) -> None:
        samples = [sample(at, **({name: value} if at > 1000 else {})) for at in range(1200)]

        assert 1 == [finding.is_good for finding in judge_samples(samples, 1200)].count(False)

    def test_a_machine_that_is_busy_with_others_is_not_held_against_nsqd(self) -> None:
        samples = [sample(at, late_ms=500, starved_ms=at) for at in range(1200)]

        assert all(finding.is_good for finding in judge_samples(samples, 1200))

    def test_what_is_not_seen_is_not_good(self) -> None:
        assert [False] == [finding.is_good for finding in judge_samples([sample(1)], 1200)]

    @pytest.mark.parametrize(("acknowledged", "lost"), [(10, 1), (0, 0)])
    def test_a_loss_is_wrong_and_so_is_no_load(self, acknowledged: int, lost: int) -> None:
        account = Account(acknowledged, 10, lost, read_back=5, troubles={})

        assert [False, True, True] == [finding.is_good for finding in judge_account(account)]


def test_a_ledger_tells_what_is_lost() -> None:
    ledger = Ledger()
    ledger.acknowledge(ledger.next_numbers(5))
    unanswered = ledger.next_numbers(2)
    ledger.acknowledge(ledger.next_numbers(1))
    for number in (0, 1, 3, 3, unanswered.start):
        ledger.receive(body_of(number))

    assert (6, 3, 5) == (ledger.size(), ledger.lost(), ledger.deliveries)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([1, 1, 1], [2, 3, 3], 10),
        ([1, 2, 2], [5, 6, 6], 2),
        ([], [1, 1, 2], 20),
        ([9], [0, 1, 1], 10),
    ],
)
def test_the_worst_lateness_is_the_bound_of_the_highest_bucket_that_grew(
    before: list[int], now: list[int], expected: float
) -> None:
    assert expected == worst_bound_ms(before, now, ["0.002", "0.01", "+Inf"])


def test_a_plot_of_the_same_figures_is_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(tmp_path / name, {"lives": [sample(1), sample(2)]}, [(1.5, "fill_disk")])

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
