"""What a topic remembers, over HTTP: what there is of it, how long it is kept, and reading it back.

Reading touches no channel: what is read stays where it is, for channels and for other readers. The
answer is a line of JSON for each message or, if `Accept` asks for them, the frames as the log has
them, which are those that consumers get by TCP.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from penstock.broker.broker import Broker
from penstock.common.clock import Clock
from penstock.common.durations import parse_duration
from penstock.common.logs import Logger
from penstock.net.http_server import HttpError, Request, Route, StreamingResponse
from penstock.net.http_server.responses import error_response
from penstock.nsqd.history_args import (
    answering_refusals,
    count_arg,
    flag_arg,
    lasting_topic,
    position_arg,
)
from penstock.nsqd.history_position import EARLIEST, OffsetAheadError, find_seq
from penstock.nsqd.history_streams import HistoryStreams
from penstock.nsqd.stats import ClientView
from penstock.storage import LogReader, Retention, TopicLog

__all__ = ["FRAMES_TYPE", "LINES_TYPE", "HistoryServices", "TopicHistory"]

FRAMES_TYPE = "application/vnd.penstock.frames"
LINES_TYPE = "application/x-ndjson"

_RETRY_AFTER_SECONDS = 1
_RETENTION_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryServices:
    """What the endpoints work with."""

    broker: Broker
    clock: Clock
    log: Logger
    node_id: int
    clients: Iterable[ClientView]
    streams: HistoryStreams
    save_metadata_soon: Callable[[], None]


class TopicHistory:
    """The endpoints of topics."""

    def __init__(self, services: HistoryServices) -> None:
        self._services = services
        self._broker = services.broker

    def routes(self) -> list[Route]:
        """The table of them."""
        log = self._services.log
        return [
            Route("GET", "/topic/log", answering_refusals(log, self._log)),
            Route("GET", "/topic/messages", answering_refusals(log, self._messages)),
            Route("POST", "/topic/retention", answering_refusals(log, self._retention)),
        ]

    def _log(self, request: Request) -> object:
        topic, log = lasting_topic(self._broker, request.args)
        segments = log.segments
        filled = [segment for segment in segments if segment.byte_size]
        time_ns, size_bytes = log.retention
        return {
            "topic": topic.name,
            "node_id": self._services.node_id,
            "first_seq": log.first_seq,
            "next_seq": log.next_seq,
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

    def _messages(self, request: Request) -> object:
        args, streams = request.args, self._services.streams
        topic, log = lasting_topic(self._broker, args)
        follow = flag_arg(args, "follow")
        first_seq = find_seq(log, position_arg(args, "from") or EARLIEST)
        end = _end_of_range(args, log, first_seq, follow=follow)
        if streams.is_full:
            retry = (("Retry-After", str(_RETRY_AFTER_SECONDS)),)
            return error_response(503, "TOO_MANY_READERS", extra_headers=retry)
        reader = LogReader(log, first_seq, end)
        pieces: AsyncIterator[bytes]
        if _wants_frames(request):
            media_type, pieces = FRAMES_TYPE, streams.frames(topic, reader, follow=follow)
        else:
            media_type, pieces = LINES_TYPE, streams.lines(topic, reader, follow=follow)
        headers = [
            ("Content-Type", media_type),
            ("X-Penstock-Node-Id", str(self._services.node_id)),
            ("X-Penstock-First-Seq", str(first_seq)),
        ]
        if end is not None:
            headers.append(("X-Penstock-Next-Seq", str(end)))
        return StreamingResponse(pieces, headers=tuple(headers))

    def _retention(self, request: Request) -> None:
        topic, _ = lasting_topic(self._broker, request.args)
        topic.retain(_retention_asked_for(request.args))


def _end_of_range(
    args: dict[str, str], log: TopicLog, first_seq: int, *, follow: bool
) -> int | None:
    """The number after that of the last message that was asked for; None if there is no last."""
    position, limit = position_arg(args, "to"), count_arg(args, "limit")
    end: int | None = None if follow else log.next_seq
    if position is not None and follow:
        # Any other place is where the log ends now, and there is nothing to follow.
        if position.kind != "seq":
            raise HttpError(400, "INVALID_ARG_TO")
        end = position.value
    elif position is not None and position.kind == "seq":
        # A message that is no more may well be the end of a range.
        end = position.value
        if end > log.next_seq:
            raise OffsetAheadError(log.next_seq)
    elif position is not None:
        end = find_seq(log, position)
    if end is not None and end < first_seq:
        raise HttpError(400, "INVALID_RANGE")
    if limit is not None:
        limited = log.seq_after(first_seq, limit)
        end = limited if end is None else min(end, limited)
    return end


def _wants_frames(request: Request) -> bool:
    accepted = (request.header("Accept") or "").split(",")
    return FRAMES_TYPE in {media_type.partition(";")[0].strip().lower() for media_type in accepted}


def _retention_asked_for(args: dict[str, str]) -> Retention | None:
    """None to have what holds for all topics."""
    if flag_arg(args, "default"):
        if "time" in args or "bytes" in args:
            raise HttpError(400, "INVALID_ARG_DEFAULT")
        return None
    if "time" not in args and "bytes" not in args:
        raise HttpError(400, "MISSING_ARG_TIME")
    return Retention(_retention_time_ns(args) or None, _retention_bytes(args) or None)


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
