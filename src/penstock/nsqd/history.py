"""HTTP endpoints for the stored history of topics and for the positions of channels. NSQ has none.

- `TopicHistory`: the catalog of all logs, the segments and the retention of a topic, and reading
  its log. Reading does not affect channels or other readers. The response has a line of JSON per
  message or, if `Accept` asks for them, the frames of the log, which are those that consumers get
  over TCP.
- `ChannelHistory`: channels that start at, or move to, a position in the log. Either consumers move
  a channel, message by message, or a reader of `/topic/messages` does so with commits. The modes
  exclude each other, because FIN and commit would overwrite each other's progress. A channel in
  mode `commit` refuses consumers, and shows its mode in nsqd.dat and /stats.
- `ChannelPeek`: looking at a channel's messages without consuming them, and acting on one of them.
  The response is a snapshot: the messages may have moved on when it arrives.

An error about a position in the log has an additional field:

    410 {"message":"SEQ_GONE","first_seq":N}      N is the next message that is still stored
    400 {"message":"SEQ_TOO_HIGH","next_seq":N}   N is the number of the next message
    410 {"message":"LOG_GONE","log_id":ID}        the log of the topic has this id

After a takeover of a replicated node, the log may contain messages of earlier leaders that the
members in sync have not confirmed yet. For this moment, requests for the catalog and for ranges
that may contain such messages get 503 NOT_CONFIRMED: readers of an earlier leader have seen them.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.memory_queue import PendingMessage
from penstock.broker.message_id import seq_of
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.clock import SECOND_NS, Clock
from penstock.common.durations import parse_duration
from penstock.common.logs import Logger
from penstock.net.http_server import (
    Handler,
    HttpError,
    Request,
    Route,
    StreamingResponse,
    json_response,
    to_json,
)
from penstock.nsqd.history_position import (
    EARLIEST,
    LogGoneError,
    OffsetAheadError,
    OffsetTrimmedError,
    Position,
    check_log_id,
    find_seq,
    parse_position,
)
from penstock.nsqd.history_streams import HistoryStreams, MessageLine, encode_lines, message_line
from penstock.nsqd.http_args import (
    choice_arg,
    count_arg,
    find_topic,
    find_topic_and_channel,
    find_topic_and_channel_name,
    flag_arg,
    invalid_arg,
    not_confirmed,
    required_arg,
    storage_errors_as_http,
    too_many_readers,
    topic_name_arg,
)
from penstock.nsqd.log_catalog import LogCatalog
from penstock.nsqd.stats import ClientView
from penstock.protocol import frames as wire
from penstock.storage import LogReader, Retention, TopicLog

__all__ = [
    "FRAMES_TYPE",
    "LINES_TYPE",
    "PEEK_LIMIT_MAX",
    "ChannelHistory",
    "ChannelPeek",
    "HistoryServices",
    "TopicHistory",
]

FRAMES_TYPE = "application/vnd.penstock.frames"
LINES_TYPE = "application/x-ndjson"

PEEK_LIMIT_DEFAULT = 100
PEEK_LIMIT_MAX = 1000

_RETENTION_MAX = (1 << 63) - 1
_WAIT_MAX_NS = 60 * SECOND_NS

_CONSUME, _COMMIT = "consume", "commit"
_STATES = ("queued", "inflight", "deferred")
_MESSAGE_ID = re.compile(r"[0-9a-f]{16}")

# A message may be large, so a piece of a response holds only a few.
_LINES_PER_PIECE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryServices:
    """Dependencies of the endpoints."""

    broker: Broker
    clock: Clock
    log: Logger
    clients: Iterable[ClientView]
    streams: HistoryStreams
    catalog: LogCatalog
    save_metadata_soon: Callable[[], None]


class _HistoryEndpoints:
    """Base of the classes of endpoints."""

    def __init__(self, services: HistoryServices) -> None:
        self._services = services
        self._broker = services.broker

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        """A route whose handler may raise errors about positions and of the storage."""
        return Route(method, path, _with_position_errors(self._services.log, handler))


class TopicHistory(_HistoryEndpoints):
    """Endpoints for the log of a topic."""

    def routes(self) -> list[Route]:
        """The routes of the endpoints."""
        return [
            self._route("GET", "/topic/log", self._log),
            Route("GET", "/topics/log", self._catalog, is_logged=False),
            self._route("GET", "/topic/messages", self._messages),
            self._route("POST", "/topic/retention", self._retention),
        ]

    def _log(self, request: Request) -> object:
        topic, log = _find_topic_log(self._broker, request.args)
        segments = log.segments
        filled = [segment for segment in segments if segment.byte_size]
        time_ns, size_bytes = log.retention
        return {
            "topic": topic.name,
            "log_id": log.log_id,
            "node_id": self._broker.node_id,
            "first_seq": log.first_seq,
            "next_seq": log.high_watermark,
            "first_timestamp_ns": filled[0].first_timestamp_ns if filled else None,
            "last_timestamp_ns": filled[-1].last_timestamp_ns if filled else None,
            "bytes": log.byte_size,
            "retention": {"time_ns": time_ns, "bytes": size_bytes},
            "segments": [
                {
                    "first_seq": segment.first_seq,
                    "next_seq": segment.next_seq,
                    "first_timestamp_ns": segment.first_timestamp_ns or None,
                    "last_timestamp_ns": segment.last_timestamp_ns or None,
                    "bytes": segment.byte_size,
                }
                for segment in segments
            ],
        }

    def _catalog(self, request: Request) -> object:
        token, wait_seconds = request.args.get("since", ""), _wait_seconds(request.args)
        return self._services.catalog.respond(token, wait_seconds)

    def _messages(self, request: Request) -> object:
        args, streams = request.args, self._services.streams
        topic, log = _find_topic_log(self._broker, args)
        follow = flag_arg(args, "follow")
        first_seq = find_seq(log, _position_arg(args, "from") or EARLIEST)
        if not follow and log.awaits_confirmation:
            raise not_confirmed()
        end = _end_of_range(args, log, first_seq, follow=follow)
        if streams.is_full:
            return too_many_readers()
        reader = LogReader(log, first_seq, end)
        pieces: AsyncIterator[bytes]
        if _wants_frames(request):
            media_type, pieces = FRAMES_TYPE, streams.frames(topic, reader, follow=follow)
        else:
            media_type, pieces = LINES_TYPE, streams.lines(topic, reader, follow=follow)
        headers = [
            ("Content-Type", media_type),
            ("X-Penstock-Node-Id", str(self._broker.node_id)),
            ("X-Penstock-Log-Id", log.log_id),
            ("X-Penstock-First-Seq", str(first_seq)),
        ]
        if end is not None:
            headers.append(("X-Penstock-Next-Seq", str(end)))
        return StreamingResponse(pieces, headers=tuple(headers))

    def _retention(self, request: Request) -> None:
        topic, _ = _find_topic_log(self._broker, request.args)
        topic.retain(_retention_arg(request.args))


def _end_of_range(
    args: dict[str, str], log: TopicLog, first_seq: int, *, follow: bool
) -> int | None:
    """One past the last requested sequence number; None for a stream without end."""
    position, limit = _position_arg(args, "to"), count_arg(args, "limit")
    end: int | None = None if follow else max(first_seq, log.high_watermark)
    if position is not None:
        check_log_id(log, position)
    if position is not None and follow:
        # Any other position is not after the current end of the log.
        if position.kind != "seq":
            raise HttpError(400, "INVALID_ARG_TO")
        end = position.value
    elif position is not None and position.kind == "seq":
        # The end of a range may be a deleted message.
        end = position.value
        if end > log.high_watermark:
            raise OffsetAheadError(log.high_watermark)
    elif position is not None:
        end = min(find_seq(log, position), log.high_watermark)
    if end is not None and end < first_seq:
        raise HttpError(400, "INVALID_RANGE")
    if limit is not None:
        limited = log.seq_after(first_seq, limit)
        end = limited if end is None else min(end, limited)
    return end


def _wants_frames(request: Request) -> bool:
    accepted = (request.header("Accept") or "").split(",")
    return FRAMES_TYPE in {media_type.partition(";")[0].strip().lower() for media_type in accepted}


def _retention_arg(args: dict[str, str]) -> Retention | None:
    """The retention to set; None for the default of all topics."""
    if flag_arg(args, "default"):
        if "time" in args or "bytes" in args:
            raise HttpError(400, "INVALID_ARG_DEFAULT")
        return None
    if "time" not in args and "bytes" not in args:
        raise HttpError(400, "MISSING_ARG_TIME")
    return Retention(_retention_time_ns(args) or None, _retention_bytes(args) or None)


def _wait_seconds(args: dict[str, str]) -> float:
    """How long a request may wait; 0 if missing."""
    try:
        wait_ns = parse_duration(args.get("wait", "0"))
    except ValueError:
        wait_ns = -1
    if not 0 <= wait_ns <= _WAIT_MAX_NS:
        raise HttpError(400, "INVALID_ARG_WAIT")
    return wait_ns / SECOND_NS


def _retention_time_ns(args: dict[str, str]) -> int:
    try:
        time_ns = parse_duration(args.get("time", "0"))
    except ValueError:
        time_ns = -1
    if time_ns < 0:
        raise HttpError(400, "INVALID_ARG_TIME")
    return time_ns


def _retention_bytes(args: dict[str, str]) -> int:
    text = args.get("bytes", "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _RETENTION_MAX:
        raise HttpError(400, "INVALID_ARG_BYTES")
    return int(text)


class ChannelHistory(_HistoryEndpoints):
    """Endpoints that create and move channels by position."""

    def routes(self) -> list[Route]:
        """The routes of the endpoints."""
        return [
            self._route("POST", "/channel/create", self._create),
            self._route("POST", "/channel/seek", self._seek),
            self._route("POST", "/channel/commit", self._commit),
            self._route("POST", "/channel/mode", self._set_mode),
        ]

    def _create(self, request: Request) -> None:
        args = request.args
        topic, name = find_topic_and_channel_name(self._broker, args)
        position = _position_arg(args, "from")
        mode = choice_arg(args, "mode", (_CONSUME, _COMMIT))
        if position is None and mode == _CONSUME:
            topic.channel(name)
            return
        log = _log_of(topic)
        if names.is_ephemeral(name):
            raise HttpError(400, "CHANNEL_IS_EPHEMERAL")
        if name in topic.channels:
            raise HttpError(409, "CHANNEL_EXISTS")
        channel = topic.channel(name, None if position is None else find_seq(log, position))
        self._change_mode(channel, mode)

    def _seek(self, request: Request) -> None:
        _, log, channel = _find_channel_log(self._broker, request.args)
        required_arg(request.args, "to")
        position = _position_arg(request.args, "to")
        assert position is not None
        channel.seek(find_seq(log, position))

    def _commit(self, request: Request) -> object:
        _, log, channel = _find_channel_log(self._broker, request.args)
        seq = _seq_arg(request.args, log)
        if seq > log.latest_seq:
            raise OffsetAheadError(log.latest_seq)
        self._change_mode(channel, _COMMIT)
        floor = channel.commit(seq)
        channel.committed_at_ns = self._services.clock.wall_ns()
        return {"seq": floor}

    def _set_mode(self, request: Request) -> None:
        _, _, channel = _find_channel_log(self._broker, request.args)
        required_arg(request.args, "mode")
        self._change_mode(channel, choice_arg(request.args, "mode", (_CONSUME, _COMMIT)))

    def _change_mode(self, channel: Channel, mode: str) -> None:
        committing = mode == _COMMIT
        if committing and channel.subscribers:
            raise HttpError(409, "CHANNEL_HAS_CONSUMERS")
        if channel.committing != committing:
            channel.set_committing(committing)
            channel.committed_at_ns = self._services.clock.wall_ns() if committing else 0
            self._services.save_metadata_soon()


def _seq_arg(args: dict[str, str], log: TopicLog) -> int:
    required_arg(args, "seq")
    position = _position_arg(args, "seq")
    if position is None or position.kind != "seq":
        raise HttpError(400, "INVALID_ARG_SEQ")
    check_log_id(log, position)
    return position.value


class ChannelPeek(_HistoryEndpoints):
    """Endpoints for the messages of a channel."""

    def routes(self) -> list[Route]:
        """The routes of the endpoints."""
        return [
            self._route("GET", "/channel/messages", self._messages),
            self._route("POST", "/channel/cancel", self._cancel),
            self._route("POST", "/channel/requeue", self._requeue),
        ]

    def _messages(self, request: Request) -> StreamingResponse:
        _, channel = find_topic_and_channel(self._broker, request.args)
        state = choice_arg(request.args, "state", _STATES)
        limit = count_arg(request.args, "limit", at_most=PEEK_LIMIT_MAX) or PEEK_LIMIT_DEFAULT
        lines: Iterator[MessageLine]
        match state:
            case "queued":
                lines = map(_pending_line, channel.peek(limit))
            case "deferred":
                lines = map(_pending_line, channel.peek_deferred(limit))
            case _:
                lines = self._in_flight_lines(channel.peek_in_flight(limit))
        return StreamingResponse(_in_pieces(lines), headers=(("Content-Type", LINES_TYPE),))

    def _cancel(self, request: Request) -> None:
        channel, message_id = self._channel_and_id(request.args)
        if not channel.cancel(message_id, self._services.clock.wall_ns()):
            raise HttpError(404, "MESSAGE_NOT_FOUND")

    def _requeue(self, request: Request) -> None:
        channel, message_id = self._channel_and_id(request.args)
        if not channel.requeue_now(message_id, self._services.clock.wall_ns()):
            raise HttpError(404, "MESSAGE_NOT_FOUND")

    def _channel_and_id(self, args: dict[str, str]) -> tuple[Channel, bytes]:
        _, channel = find_topic_and_channel(self._broker, args)
        message_id = required_arg(args, "id")
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
            line = _message_line(frame)
            line.attempts = wire.attempts(frame)
            line.deadline_ns = deadline_ns + wall_offset_ns
            # A client that has disconnected is unknown; its messages wait for their timeout.
            if (client := clients.get(subscriber)) is not None:
                line.client_id = client.negotiated.client_id
                line.client_address = client.remote_address
            yield line


def _pending_line(pending: PendingMessage) -> MessageLine:
    line = _message_line(pending.frame, pending.due_ns)
    line.attempts = wire.attempts(pending.frame) - 1  # the frame is prepared for the next attempt
    return line


def _message_line(frame: bytes, due_ns: int = 0) -> MessageLine:
    return message_line(seq_of(wire.message_id(frame)), frame, due_ns)


async def _in_pieces(lines: Iterator[MessageLine]) -> AsyncIterator[bytes]:
    piece: list[MessageLine] = []
    for line in lines:
        piece.append(line)
        if len(piece) == _LINES_PER_PIECE:
            yield encode_lines(piece)
            piece = []
    yield encode_lines(piece)


def _with_position_errors(log: Logger, handler: Handler) -> Handler:
    """Wraps a handler: errors about positions and of the storage become responses."""

    def handle(request: Request) -> object:
        try:
            with storage_errors_as_http(log, request):
                return handler(request)
        except OffsetTrimmedError as error:
            body = {"message": "SEQ_GONE", "first_seq": error.first_seq}
            return json_response(410, to_json(body))
        except LogGoneError as error:
            body = {"message": "LOG_GONE", "log_id": error.log_id}
            return json_response(410, to_json(body))
        except OffsetAheadError as error:
            body = {"message": "SEQ_TOO_HIGH", "next_seq": error.next_seq}
            return json_response(400, to_json(body))

    return handle


def _find_topic_log(broker: Broker, args: dict[str, str]) -> tuple[Topic, TopicLog]:
    """A topic and its log. Raises HttpError 400 if the topic is ephemeral."""
    topic = find_topic(broker, topic_name_arg(args, "INVALID_TOPIC"))
    return topic, _log_of(topic)


def _find_channel_log(broker: Broker, args: dict[str, str]) -> tuple[Topic, TopicLog, Channel]:
    """A channel with a position in its topic's log. Raises HttpError 400 if it is ephemeral."""
    topic, channel = find_topic_and_channel(broker, args)
    log = _log_of(topic)
    if channel.ephemeral:
        raise HttpError(400, "CHANNEL_IS_EPHEMERAL")
    return topic, log, channel


def _log_of(topic: Topic) -> TopicLog:
    """The log of a topic. Raises HttpError 400 if the topic is ephemeral."""
    if topic.store is None:
        raise HttpError(400, "TOPIC_IS_EPHEMERAL")
    return topic.store.log


def _position_arg(args: dict[str, str], name: str) -> Position | None:
    """A position in a log; None if missing."""
    if name not in args:
        return None
    try:
        return parse_position(args[name])
    except ValueError:
        raise invalid_arg(name) from None
