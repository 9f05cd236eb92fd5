"""Looking into a channel over HTTP without consuming, and seeing to one message of it.

What is seen is a moment: it may have moved on by the time that it arrives.
"""

import re
from collections.abc import AsyncIterator, Iterator

from penstock.broker.channel import Channel
from penstock.broker.memory_queue import PendingMessage
from penstock.broker.message_id import seq_of
from penstock.broker.subscriber import Subscriber
from penstock.net.http_server import HttpError, Request, Route, StreamingResponse
from penstock.nsqd.history import LINES_TYPE, HistoryServices
from penstock.nsqd.history_args import answering_refusals, count_arg, word_arg
from penstock.nsqd.http_args import required, topic_and_channel
from penstock.nsqd.message_json import MessageLine, encode_lines, message_line
from penstock.protocol import frames as wire

__all__ = ["LIMIT_MAX", "ChannelPeek"]

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000

_STATES = ("queued", "inflight", "deferred")
_MESSAGE_ID = re.compile(r"[0-9a-f]{16}")

# A message may be large, and a piece of the answer holds at least one: so none holds many.
_LINES_PER_PIECE = 16


class ChannelPeek:
    """The endpoints."""

    def __init__(self, services: HistoryServices) -> None:
        self._services = services
        self._broker = services.broker

    def routes(self) -> list[Route]:
        """The table of them."""
        log = self._services.log
        return [
            Route("GET", "/channel/messages", answering_refusals(log, self._messages)),
            Route("POST", "/channel/cancel", answering_refusals(log, self._cancel)),
            Route("POST", "/channel/requeue", answering_refusals(log, self._requeue)),
        ]

    def _messages(self, request: Request) -> StreamingResponse:
        _, channel = topic_and_channel(self._broker, request.args)
        state = word_arg(request.args, "state", _STATES)
        limit = count_arg(request.args, "limit", at_most=LIMIT_MAX) or LIMIT_DEFAULT
        lines: Iterator[MessageLine]
        match state:
            case "queued":
                lines = map(_waiting_line, channel.peek(limit))
            case "deferred":
                lines = map(_waiting_line, channel.peek_deferred(limit))
            case _:
                lines = self._in_flight_lines(channel.peek_in_flight(limit))
        return StreamingResponse(_in_pieces(lines), headers=(("Content-Type", LINES_TYPE),))

    def _cancel(self, request: Request) -> None:
        channel, message_id = self._channel_and_id(request.args)
        if not channel.cancel(message_id, self._services.clock.wall_ns()):
            raise HttpError(404, "MESSAGE_NOT_FOUND")

    def _requeue(self, request: Request) -> None:
        channel, message_id = self._channel_and_id(request.args)
        if not channel.recall(message_id, self._services.clock.wall_ns()):
            raise HttpError(404, "MESSAGE_NOT_FOUND")

    def _channel_and_id(self, args: dict[str, str]) -> tuple[Channel, bytes]:
        _, channel = topic_and_channel(self._broker, args)
        message_id = required(args, "id")
        if not _MESSAGE_ID.fullmatch(message_id):
            raise HttpError(400, "INVALID_ARG_ID")
        return channel, message_id.encode()

    def _in_flight_lines(
        self, in_flight: list[tuple[Subscriber, bytes, int]]
    ) -> Iterator[MessageLine]:
        clock = self._services.clock
        wall_offset_ns = clock.wall_ns() - clock.now_ns()
        clients = {each.subscriber: each for each in self._services.clients}
        for subscriber, frame, deadline_ns in in_flight:
            line = _line(frame)
            line.attempts = wire.attempts(frame)
            line.deadline_ns = deadline_ns + wall_offset_ns
            # One that has gone, leaving messages to time out, is not known any more.
            if (client := clients.get(subscriber)) is not None:
                line.client_id = client.negotiated.client_id
                line.client_address = client.remote_address
            yield line


def _waiting_line(waiting: PendingMessage) -> MessageLine:
    line = _line(waiting.frame, waiting.due_ns)
    line.attempts = wire.attempts(waiting.frame) - 1  # the frame is that of the next one
    return line


def _line(frame: bytes, due_ns: int = 0) -> MessageLine:
    return message_line(seq_of(wire.message_id(frame)), frame, due_ns)


async def _in_pieces(lines: Iterator[MessageLine]) -> AsyncIterator[bytes]:
    piece: list[MessageLine] = []
    for line in lines:
        piece.append(line)
        if len(piece) == _LINES_PER_PIECE:
            yield encode_lines(piece)
            piece = []
    yield encode_lines(piece)
