"""Numbers and names, as people read them."""

import pytest

from penstock.admin_api.cluster import Node
from penstock.nsqadmin.login import local_path
from penstock.nsqadmin.rendering import ago, bytes_text, compact, rate, spark_points
from penstock.nsqadmin.views import Found, find
from penstock.nsqadmin.watcher import Snapshot


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_999, "1000k"),
        (4_560_000, "4.56M"),
        (7_000_000_000, "7B"),
    ],
)
def test_counts_are_short(count: int, text: str) -> None:
    assert text == compact(count)


@pytest.mark.parametrize(
    ("per_second", "text"), [(0, "0"), (0.04, "0.0"), (2.25, "2.2"), (9.96, "10"), (81234, "81.2k")]
)
def test_rates_have_the_digits_that_help(per_second: float, text: str) -> None:
    assert text == rate(per_second)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (61, "1m 1s"), (3600, "1h"), (90_061, "1d 1h"), (-5, "0s")]
)
def test_times_have_two_units_at_most(seconds: float, text: str) -> None:
    assert text == ago(seconds)


def test_sizes_have_a_unit() -> None:
    assert ["0 B", "999 B", "1.5 kB", "2 TB"] == [bytes_text(size) for size in (0, 999, 1500, 2e12)]


def test_a_small_line_is_scaled_to_its_highest() -> None:
    assert "0.0,20.5 48.0,1.5 96.0,11.0" == spark_points([0, 10, 5])
    assert "" == spark_points([1])


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/nsq/topics/t?x=1", "/nsq/topics/t?x=1"),
        ("//evil.example/nsq/", "/nsq/"),
        ("https://evil.example/nsq/", "/nsq/"),
        ("/nsq/\\evil.example", "/nsq/"),
        ("/elsewhere", "/nsq/"),
        ("", "/nsq/"),
    ],
)
def test_after_logging_in_nobody_is_sent_elsewhere(target: str, path: str) -> None:
    assert path == local_path(target, "/nsq/")


def test_what_begins_with_the_word_is_found_first() -> None:
    node = Node(hostname="web", broadcast_address="10.0.0.1", tcp_port=1, http_port=2, version="")
    snapshot = Snapshot(0.0, ["web.orders", "orders", "orders.old"], [node])

    assert [
        Found("topic", "orders"),
        Found("topic", "orders.old"),
        Found("topic", "web.orders"),
    ] == find(snapshot, "ord")
    assert [Found("topic", "web.orders")] == find(snapshot, "ord WEB")
    assert Found("node", "", node="10.0.0.1:2") in find(snapshot, "web")
    assert [] == find(snapshot, "  ")
