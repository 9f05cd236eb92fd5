from penstock.nsqd.error_counters import Refusals


def test_refusals_are_counted_by_reason() -> None:
    refusals = Refusals()
    for reason in ("connections", "topics", "connections"):
        refusals.count(reason)

    assert {"connections": 2, "topics": 1} == refusals.counts
