"""What the endpoints of nsqd's HTTP API find in a request: topics, channels, and what is wrong.

The codes, and the order in which a request's faults are found, are the reference's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.errors import LimitReachedError, StorageError
from penstock.common.logs import Logger
from penstock.net.http_server import HttpError, Request

__all__ = [
    "failing_with_500",
    "required",
    "topic_and_channel",
    "topic_and_channel_name",
    "topic_name",
    "topic_of",
]


def required(args: dict[str, str], name: str) -> str:
    """An argument that may be empty but not missing."""
    if name not in args:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return args[name]


def topic_name(args: dict[str, str], code_if_invalid: str) -> str:
    """The name of a topic, which need not be there."""
    name = required(args, "topic")
    if not names.is_valid(name):
        raise HttpError(400, code_if_invalid)
    return name


def topic_of(broker: Broker, name: str) -> Topic:
    """The topic of that name, or 404."""
    topic = broker.topics.get(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def topic_and_channel_name(broker: Broker, args: dict[str, str]) -> tuple[Topic, str]:
    """A topic that is there, and the name of a channel that need not be."""
    name_of_topic = topic_name(args, "INVALID_ARG_TOPIC")
    name = required(args, "channel")
    if not names.is_valid(name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic_of(broker, name_of_topic), name


def topic_and_channel(broker: Broker, args: dict[str, str]) -> tuple[Topic, Channel]:
    """A topic and a channel of it."""
    topic, name = topic_and_channel_name(broker, args)
    channel = topic.channels.get(name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return topic, channel


@contextmanager
def failing_with_500(log: Logger, request: Request) -> Iterator[None]:
    """What an operator is told when the disk does not let us."""
    try:
        yield
    except LimitReachedError as failure:
        log.error("failure in %s - %s", request.path, failure)
        raise HttpError(503, "LIMIT_REACHED") from failure
    except StorageError as failure:
        log.error("failure in %s - %s", request.path, failure)
        raise HttpError(500, "INTERNAL_ERROR") from failure
