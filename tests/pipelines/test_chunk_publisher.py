"""A chunk is stored exactly once, also if the response is lost or nsqd is killed."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.tables import history

from penstock.admin_api.blocking_api import BlockingApi
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.chunk_publisher import ChunkPublisher, contains_run
from penstock.pipelines.running import Stop
from penstock.testing.nsqd import NsqdProcess


def publisher(nsqd: NsqdProcess, timeout_seconds: float = 60.0) -> ChunkPublisher:
    brokers = Brokers((nsqd.http_address,))
    made = ChunkPublisher(brokers, "again", Stop(), timeout_seconds=timeout_seconds)
    made.choose_node()
    return made


def bodies(nsqd: NsqdProcess) -> list[str]:
    return [message["body"] for message in history(nsqd, "again")]


@pytest.mark.parametrize("arrives", [True, False])
def test_without_a_response_the_log_is_searched_before_a_retry(
    nsqd: NsqdProcess, monkeypatch: pytest.MonkeyPatch, *, arrives: bool
) -> None:
    chunks = publisher(nsqd)
    nsqd.publish("again", b"one")  # of another producer
    chunk = chunks.prepare(2)
    nsqd.publish("again", b"two")
    real, lost = BlockingApi.post, iter(["the answer"])

    def post(self: BlockingApi, *args: Any, **more: Any) -> Any:
        if next(lost, None) is None:
            return real(self, *args, **more)
        if arrives:
            real(self, *args, **more)
        raise HttpRequestError("nsqd", "the connection was lost")

    monkeypatch.setattr(BlockingApi, "post", post)
    chunks.publish(chunk, [b"one", b"two"])

    assert ["one", "two", "one", "two"] == bodies(nsqd)
    assert chunks.is_stored(chunk, [b"one", b"two"])
    assert not chunks.is_stored(chunk, [b"two", b"two"])


def test_publishing_fails_if_the_node_does_not_return(nsqd: NsqdProcess) -> None:
    chunks = publisher(nsqd, timeout_seconds=0.0)
    chunk = chunks.prepare(1)
    nsqd.kill()
    with pytest.raises((HttpRequestError, NotConnectedError)):
        chunks.publish(chunk, [b"one"])
    nsqd.restart()

    assert [] == bodies(nsqd)


BODIES = st.lists(st.sampled_from([b"a", b"b"]), max_size=12)


@given(wanted=BODIES.filter(bool), stored=BODIES)
def test_a_contiguous_run_is_found_at_any_position(
    wanted: list[bytes], stored: list[bytes]
) -> None:
    starts = range(len(stored) - len(wanted) + 1)
    expected = any(stored[start : start + len(wanted)] == wanted for start in starts)

    assert expected == contains_run(wanted, iter(stored))


def test_stored_bodies_are_read_one_at_a_time() -> None:
    endless = itertools.cycle([b"other", b"one", b"two"])

    assert contains_run([b"one", b"two"], endless)
    assert b"other" == next(endless)
