"""Positions in a topic's log, as users write them: a sequence number, a time, or a keyword.

    earliest                        the oldest message that is stored
    latest                          after the newest one
    1763240000123456                the message with this sequence number
    9f86d081:1763240000123456       the same, if the log has this id
    1763240000123456789             the first message stored at or after this time, in nanoseconds
    2026-11-15T10:00:00.5+01:00     the same, in RFC 3339

A log id has 32 hex digits; at least the first 8 must be given. A topic that was deleted and created
again has another log id, and so has the topic on another node.

A sequence number has at most 54 bits, because the other 10 bits of a message id are the node id. A
number below 2**54 is therefore a sequence number, and a larger one a time: 2**54 nanoseconds are in
July 1970, and no message is that old.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Literal, NamedTuple

from penstock.common.clock import SECOND_NS
from penstock.storage import TopicLog

__all__ = [
    "EARLIEST",
    "LATEST",
    "LogGoneError",
    "OffsetAheadError",
    "OffsetTrimmedError",
    "Position",
    "check_log_id",
    "find_seq",
    "parse_position",
]

_SEQ_LIMIT = 1 << 54
_TIME_LIMIT_NS = 1 << 63

_NUMBER = re.compile(r"[0-9]{1,19}")
_LOG_ID = re.compile(r"[0-9a-f]{8,32}")
# An unescaped `+` of an offset becomes a blank when the query is decoded.
_RFC_3339 = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt ](?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9})\d*)?"
    r"(?:[Zz]|(?P<sign>[-+ ])(?P<hours>\d\d):(?P<minutes>\d\d))",
    re.ASCII,
)


class Position(NamedTuple):
    """`value` is the sequence number, or the time in nanoseconds. `log_id` is the start of the id
    that the log must have; empty for any log."""

    kind: Literal["earliest", "latest", "seq", "time"]
    value: int = 0
    log_id: str = ""


EARLIEST = Position("earliest")
LATEST = Position("latest")


class OffsetTrimmedError(Exception):
    """The message has been deleted; `first_seq` is the next one that is stored."""

    def __init__(self, first_seq: int) -> None:
        super().__init__(first_seq)
        self.first_seq = first_seq


class OffsetAheadError(Exception):
    """The message does not exist yet; `next_seq` is the number of the next message."""

    def __init__(self, next_seq: int) -> None:
        super().__init__(next_seq)
        self.next_seq = next_seq


class LogGoneError(Exception):
    """The topic's log has another id than the position; `log_id` is the id of the topic's log."""

    def __init__(self, log_id: str) -> None:
        super().__init__(log_id)
        self.log_id = log_id


def parse_position(text: str) -> Position:
    """Parses a position. Raises ValueError."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    log_id, colon, seq = text.partition(":")
    if colon and _LOG_ID.fullmatch(log_id):
        if not _NUMBER.fullmatch(seq) or int(seq) >= _SEQ_LIMIT:
            raise ValueError("a log id without a sequence number")
        return Position("seq", int(seq), log_id)
    if _NUMBER.fullmatch(text):
        number = int(text)
        if number < _SEQ_LIMIT:
            return Position("seq", number)
        time_ns = number
    else:
        time_ns = _parse_rfc_3339(text)
    if not 0 <= time_ns < _TIME_LIMIT_NS:
        raise ValueError("time out of range")
    return Position("time", time_ns)


def find_seq(log: TopicLog, position: Position) -> int:
    """Sequence number of the message at a position, or the log's `latest_seq`.

    A sequence number must be that of a stored message or of the next one; any time is accepted.
    With replication, messages from `latest_seq` on do not exist yet for the caller.
    Raises LogGoneError, OffsetTrimmedError, OffsetAheadError or StorageError.
    """
    check_log_id(log, position)
    match position.kind:
        case "earliest":
            return log.first_seq
        case "latest":
            return log.latest_seq
        case "time":
            return min(log.seq_at_time(position.value), log.latest_seq)
    seq = position.value
    if seq > log.latest_seq:
        raise OffsetAheadError(log.latest_seq)
    segment = log.maybe_segment_from(seq)
    if segment is not None and segment.first_seq > seq:
        raise OffsetTrimmedError(segment.first_seq)
    if segment is None and seq < log.next_seq:
        raise OffsetTrimmedError(log.next_seq)
    return seq


def check_log_id(log: TopicLog, position: Position) -> None:
    """Raises LogGoneError if the position belongs to another log."""
    if not log.log_id.startswith(position.log_id):
        raise LogGoneError(log.log_id)


def _parse_rfc_3339(text: str) -> int:
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError("neither a number nor a time")
    zone: timezone = UTC
    if match["sign"]:
        if int(match["hours"]) > 23 or int(match["minutes"]) > 59:
            raise ValueError("invalid offset")
        offset = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"]))
        zone = timezone(-offset if match["sign"] == "-" else offset)
    moment = datetime.fromisoformat(f"{match['date']}T{match['time']}").replace(tzinfo=zone)
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since_epoch.days * 86400 + since_epoch.seconds
    return seconds * SECOND_NS + int((match["fraction"] or "0").ljust(9, "0"))
