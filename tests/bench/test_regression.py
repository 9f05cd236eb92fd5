"""A message must not become a quarter more expensive unnoticed.

If it has, and is worth it, or if it has become cheaper: `python -m bench.guard --accept`.
"""

import json
from pathlib import Path

import pytest
from bench.guard import PYTHON, Guarded, accepted, main, measure
from click.testing import CliRunner

from bench import guard
from penstock.broker.topic import Topic

ROUNDS = 30


# Another Python has other costs: there is nothing to hold them against before somebody has run
# `python -m bench.guard --accept` with it. The Python that CI has is accepted.
@pytest.mark.skipif(not accepted(), reason=f"nothing was accepted for Python {PYTHON} yet")
def test_a_message_costs_no_more_than_a_quarter_above_what_was_accepted() -> None:
    measured = measure(2 * ROUNDS)

    assert [] == [one for one in measured if one.is_too_much]


def test_a_little_work_for_each_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a run without it, so that the test says nothing of what was accepted."""
    publish, before = Topic.publish, measure(ROUNDS)

    def publish_slowly(self: Topic, bodies: list[bytes], defer_ns: int = 0) -> int:
        for _ in bodies:
            for _ in range(40):
                pass
        return publish(self, bodies, defer_ns)

    monkeypatch.setattr(Topic, "publish", publish_slowly)
    batches, _ = measure(ROUNDS)

    assert Guarded(batches.workload, batches.cost, before[0].cost).is_too_much


def test_what_is_accepted_is_what_the_next_run_is_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guard.json").write_text('{"3.0": {"PUB": 1.0}}')
    monkeypatch.setattr(guard, "BASELINE", tmp_path / "guard.json")
    monkeypatch.setattr(guard, "ROUNDS", 1)
    run = CliRunner().invoke(main, ["--accept"])
    known = json.loads((tmp_path / "guard.json").read_text())

    assert 0 == run.exit_code, run.output
    assert {"3.0", PYTHON} == known.keys()
    assert accepted() == known[PYTHON]


@pytest.mark.parametrize(("cost", "is_too_much"), [(2.5, False), (2.51, True)])
def test_a_quarter_more_is_the_limit(cost: float, *, is_too_much: bool) -> None:
    assert is_too_much is Guarded("PUB", cost, 2.0).is_too_much
    assert not Guarded("PUB", cost, None).is_too_much
