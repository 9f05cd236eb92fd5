"""Counts of stored messages, responses that are not messages, and the texts of nsqd's error
codes."""

from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.admin_api.models import LogSegment, TopicLogResponse
from penstock.admin_api.nsqd_api import NsqdApi, api_error
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import HttpClient

HTTP = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=60)
MESSAGE = b'{"seq":1,"id":"0000000000000001","timestamp_ns":1,"body":"b"}\n'


def test_gaps_in_the_log_are_not_counted() -> None:
    log = TopicLogResponse(
        node_id=1, first_seq=10, next_seq=40, segments=[LogSegment(10, 20), LogSegment(30, 40)]
    )

    assert [20, 15, 10, 10, 3, 0] == [log.count_from(seq) for seq in (10, 15, 20, 25, 37, 40)]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b'{"message":"TOPIC_NOT_FOUND"}', "n:1: there is no topic t"),
        (
            410,
            b'{"message":"SEQ_GONE","first_seq":7}',
            "n:1: the message is no longer stored; the first",
        ),
        (404, b'{"message":"CHANNEL_NOT_FOUND"}', "n:1: there is no channel ? of t"),
        (404, b'{"message":"NOT_FOUND"}', "n:1: this nsqd keeps no history"),
        (500, b'{"message":"INTERNAL_ERROR"}', "n:1: it answered 500 'INTERNAL_ERROR'"),
        (502, b"<html>", "n:1: it answered 502 '<html>'"),
        (502, b"[1]", "n:1: it answered 502 '[1]'"),
        (502, b'{"x":' + b"[" * 100_000, "n:1: it answered 502 '{"),
    ],
)
def test_error_codes_are_explained(status: int, body: bytes, expected: str) -> None:
    assert str(api_error("n:1", status, body, {"topic": "t"})).startswith(expected)


@pytest.mark.parametrize(
    "ask",
    [
        lambda nsqd: nsqd.messages("t", "earliest", 10),
        lambda nsqd: nsqd.search("t", "earliest", "x", 10),
        lambda nsqd: nsqd.channel_messages("t", "c", "queued", 10),
    ],
    ids=["messages", "search", "channel_messages"],
)
@pytest.mark.parametrize(
    "line", [b"<html>", b'{"seq":1}', MESSAGE.replace(b'"b"', b'"\xff"')], ids=repr
)
def test_an_invalid_message_is_an_error_with_the_node(
    ask: Callable[[NsqdApi], Awaitable[object]], line: bytes
) -> None:
    async def scene() -> None:
        async with scripted_server(b"HTTP/1.1 200 OK\r\n\r\n" + MESSAGE + line) as server:
            await ask(NsqdApi(HTTP, f"127.0.0.1:{server.port}"))

    with pytest.raises(HttpRequestError, match=r"127\.0\.0\.1:\d+: unexpected response: "):
        uvloop.run(scene())
