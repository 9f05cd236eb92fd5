"""Selection of the next destination when some fail or are slow."""

import random
from collections import Counter

from penstock.common.logs import Logger
from penstock.tools.host_pool import (
    EpsilonGreedy,
    HostPool,
    HostSelector,
    RequestTimings,
    RoundRobin,
)

HOSTS = ["a", "b", "c"]


def picks(pool: HostSelector, count: int, now: float = 0.0) -> str:
    return "".join(pool.pick(now) for _ in range(count))


def test_round_robin_uses_failing_hosts_too() -> None:
    pool = RoundRobin(HOSTS)
    pool.mark("b", 0.0, 0.0, failed=True)

    assert "abcabc" == picks(pool, 6)


def test_a_failing_host_is_skipped_for_twice_as_long_each_time() -> None:
    pool = HostPool(HOSTS)
    pool.mark("b", 0.0, 0.0, failed=True)
    assert "acac" == picks(pool, 4, now=29.9)

    # One request tests whether the host works again; the others wait for its result.
    assert 1 == picks(pool, 6, now=30.0).count("b")
    pool.mark("b", 30.0, 0.0, failed=True)
    assert 0 == picks(pool, 6, now=89.9).count("b")
    assert 1 == picks(pool, 6, now=90.0).count("b")

    pool.mark("b", 90.0, 0.1)
    assert 2 == picks(pool, 6, now=90.0).count("b")


def test_concurrent_failures_count_once() -> None:
    pool = HostPool(["a", "b"])
    for _ in range(5):
        pool.mark("a", 0.0, 0.0, failed=True)

    assert "b" == picks(pool, 1, now=29.0)
    assert "a" in picks(pool, 2, now=30.0)


def test_when_all_have_failed_all_are_tried_again() -> None:
    pool = HostPool(["a", "b"])
    for host in "ab":
        pool.mark(host, 0.0, 0.0, failed=True)

    assert Counter("aabb") == Counter(picks(pool, 4))


def test_fast_hosts_are_preferred_and_slow_ones_still_used() -> None:
    pool = EpsilonGreedy(["fast", "slow"], random.Random(1).random)
    counts: Counter[str] = Counter()
    for step in range(2000):
        host = pool.pick(step / 100)
        counts[host] += 1
        pool.mark(host, step / 100, 0.01 if host == "fast" else 0.09)

    # In inverse proportion to their times: nine to one, except for exploration.
    assert 1600 < counts["fast"] < 1900


def test_a_host_that_becomes_slow_gets_fewer_requests() -> None:
    pool = EpsilonGreedy(["a", "b"], random.Random(1).random)
    for step in range(1000):
        host = pool.pick(step)
        pool.mark(host, step, 0.01 if host == "a" else 0.1)
    late: Counter[str] = Counter()
    for step in range(1000, 5000):
        host = pool.pick(step)
        pool.mark(host, step, 0.1 if host == "a" else 0.01)
        late[host] += step > 3000

    assert late["b"] > 4 * late["a"]


def test_the_fastest_host_is_skipped_while_it_fails() -> None:
    pool = EpsilonGreedy(["a", "b"], random.Random(1).random)
    pool.mark("a", 0.0, 0.001)
    pool.mark("b", 0.0, 0.1)
    pool.mark("a", 0.0, 0.0, failed=True)

    assert "b" * 50 == picks(pool, 50, now=1.0)


def lines_of(every: int, *milliseconds: float) -> list[str]:
    lines: list[str] = []
    timings = RequestTimings("aggregate", every, Logger("", write=lines.append))
    for each in milliseconds:
        timings.add(each / 1000)
    return [line.split("INFO: ")[1] for line in lines]


def test_a_line_is_logged_every_n_requests() -> None:
    expected = ["[aggregate]: finished 2 - 99th: 3.00ms - 95th: 3.00ms - avg: 2.00ms\n"] * 2

    assert expected == lines_of(2, 1, 3, 3, 1, 5)


def test_percentiles_are_those_of_nsq() -> None:
    expected = ["[aggregate]: finished 100 - 99th: 100.00ms - 95th: 97.00ms - avg: 50.50ms\n"]

    assert expected == lines_of(100, *range(1, 101))


def test_status_every_0_logs_nothing() -> None:
    assert [] == lines_of(0, 1, 2, 3)
