"""What the endpoints of history find in a request, and how they refuse what they cannot do.

Beside the API's code, a refusal that is about a place in the log says what there is instead:

    410 {"message":"SEQ_GONE","first_seq":N}      N is the next message that is still stored
    400 {"message":"SEQ_TOO_HIGH","next_seq":N}   N is the number that the next message will get
"""

import re

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.topic import Topic
from penstock.common.logs import Logger
from penstock.net.http_server import Handler, HttpError, Request, json_response, to_json
from penstock.nsqd.history_position import (
    OffsetAheadError,
    OffsetTrimmedError,
    Position,
    parse_position,
)
from penstock.nsqd.http_args import failing_with_500, topic_and_channel, topic_name, topic_of
from penstock.storage import TopicLog

__all__ = [
    "answering_refusals",
    "count_arg",
    "flag_arg",
    "lasting_channel",
    "lasting_topic",
    "log_of",
    "position_arg",
    "word_arg",
]

_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def answering_refusals(log: Logger, handler: Handler) -> Handler:
    """The handler, with its refusals worded."""

    def handle(request: Request) -> object:
        try:
            with failing_with_500(log, request):
                return handler(request)
        except OffsetTrimmedError as gone:
            body = {"message": "SEQ_GONE", "first_seq": gone.first_seq}
            return json_response(410, to_json(body))
        except OffsetAheadError as not_yet:
            body = {"message": "SEQ_TOO_HIGH", "next_seq": not_yet.next_seq}
            return json_response(400, to_json(body))

    return handle


def lasting_topic(broker: Broker, args: dict[str, str]) -> tuple[Topic, TopicLog]:
    """A topic that has a log, and that log."""
    topic = topic_of(broker, topic_name(args, "INVALID_TOPIC"))
    return topic, log_of(topic)


def lasting_channel(broker: Broker, args: dict[str, str]) -> tuple[Topic, TopicLog, Channel]:
    """A channel that has a place in its topic's log."""
    topic, channel = topic_and_channel(broker, args)
    log = log_of(topic)
    if channel.ephemeral:
        raise HttpError(400, "CHANNEL_IS_EPHEMERAL")
    return topic, log, channel


def log_of(topic: Topic) -> TopicLog:
    """The log of a topic, or 400 if it lives in memory only."""
    if topic.store is None:
        raise HttpError(400, "TOPIC_IS_EPHEMERAL")
    return topic.store.log


def position_arg(args: dict[str, str], name: str) -> Position | None:
    """A place in a log; None if it is not given."""
    if name not in args:
        return None
    try:
        return parse_position(args[name])
    except ValueError:
        raise _invalid(name) from None


def count_arg(args: dict[str, str], name: str, *, at_most: int | None = None) -> int | None:
    """A number of things, at least one; None if it is not given."""
    if name not in args:
        return None
    if not _COUNT.fullmatch(args[name]):
        raise _invalid(name)
    count = int(args[name])
    if count < 1 or (at_most is not None and count > at_most):
        raise _invalid(name)
    return count


def flag_arg(args: dict[str, str], name: str) -> bool:
    """On or off; off if it is not given."""
    if name not in args:
        return False
    if args[name] not in _FLAGS:
        raise _invalid(name)
    return _FLAGS[args[name]]


def word_arg(args: dict[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of these words; the first if it is not given."""
    word = args.get(name, words[0])
    if word not in words:
        raise _invalid(name)
    return word


def _invalid(name: str) -> HttpError:
    return HttpError(400, f"INVALID_ARG_{name.upper()}")
