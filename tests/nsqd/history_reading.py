"""Helpers that read topic logs over HTTP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple

from penstock.protocol.frames import FrameReader, MessageFrame
from penstock.testing.nsqd import NsqdProcess

__all__ = ["FRAMES", "Log", "bodies", "frames", "log_of", "messages", "reading"]

FRAMES = {"Accept": "application/vnd.penstock.frames"}


class Log(NamedTuple):
    """The response of /topic/log."""

    first_seq: int
    next_seq: int
    whole: dict[str, Any]


def log_of(nsqd: NsqdProcess, topic: str) -> Log:
    answer = nsqd.http("GET", f"/topic/log?topic={topic}")
    assert answer.status == 200, answer
    whole = answer.json()
    return Log(whole["first_seq"], whole["next_seq"], whole)


@contextmanager
def reading(
    nsqd: NsqdProcess, target: str, headers: dict[str, str] | None = None
) -> Iterator[HTTPResponse]:
    """A response that is read in pieces."""
    connection = HTTPConnection(nsqd.http_address, timeout=60)
    try:
        connection.request("GET", target, headers=headers or {})
        yield connection.getresponse()
    finally:
        connection.close()


def messages(nsqd: NsqdProcess, topic: str, query: str = "") -> list[dict[str, Any]]:
    """The lines of /topic/messages for a range."""
    answer = nsqd.http("GET", f"/topic/messages?topic={topic}{query}")
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


def bodies(nsqd: NsqdProcess, topic: str, query: str = "") -> str:
    """The bodies of a range, as text."""
    return "".join(message["body"] for message in messages(nsqd, topic, query))


def frames(nsqd: NsqdProcess, topic: str, query: str = "") -> list[MessageFrame]:
    """The same range as frames."""
    with reading(nsqd, f"/topic/messages?topic={topic}{query}", FRAMES) as response:
        assert response.status == 200
        assert "application/vnd.penstock.frames" == response.getheader("Content-Type")
        reader = FrameReader()
        reader.receive_data(response.read())
    found = []
    while (frame := reader.next_frame()) is not None:
        assert isinstance(frame, MessageFrame)
        found.append(frame)
    assert b"" == reader.take_unread()
    return found
