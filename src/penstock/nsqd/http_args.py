"""Arguments of nsqd's HTTP endpoints: parsing, validation, and lookup of topics and channels.

Error codes and the order of checks are NSQ's.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.errors import LimitReachedError, StorageError
from penstock.common.logs import Logger
from penstock.net.http_server import HttpError, Request, Response, error_response

__all__ = [
    "BOOLEANS",
    "choice_arg",
    "count_arg",
    "find_topic",
    "find_topic_and_channel",
    "find_topic_and_channel_name",
    "flag_arg",
    "invalid_arg",
    "not_confirmed",
    "required_arg",
    "storage_errors_as_http",
    "too_many_readers",
    "topic_name_arg",
]

_RETRY_AFTER_SECONDS = 1

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)


def required_arg(args: dict[str, str], name: str) -> str:
    """A required argument, which may be empty."""
    if name not in args:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return args[name]


def topic_name_arg(args: dict[str, str], code_if_invalid: str) -> str:
    """A valid topic name; the topic need not exist."""
    name = required_arg(args, "topic")
    if not names.is_valid(name):
        raise HttpError(400, code_if_invalid)
    return name


def find_topic(broker: Broker, name: str) -> Topic:
    """The topic. Raises HttpError 404 if it does not exist."""
    topic = broker.topics.get(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def find_topic_and_channel_name(broker: Broker, args: dict[str, str]) -> tuple[Topic, str]:
    """An existing topic and a valid channel name; the channel need not exist."""
    topic_name = topic_name_arg(args, "INVALID_ARG_TOPIC")
    name = required_arg(args, "channel")
    if not names.is_valid(name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return find_topic(broker, topic_name), name


def find_topic_and_channel(broker: Broker, args: dict[str, str]) -> tuple[Topic, Channel]:
    """An existing topic and channel."""
    topic, name = find_topic_and_channel_name(broker, args)
    channel = topic.channels.get(name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return topic, channel


def count_arg(args: dict[str, str], name: str, *, at_most: int | None = None) -> int | None:
    """An integer of at least 1; None if missing."""
    if name not in args:
        return None
    if not _COUNT.fullmatch(args[name]):
        raise invalid_arg(name)
    count = int(args[name])
    if count < 1 or (at_most is not None and count > at_most):
        raise invalid_arg(name)
    return count


def flag_arg(args: dict[str, str], name: str) -> bool:
    """A boolean; False if missing."""
    if name not in args:
        return False
    if args[name] not in BOOLEANS:
        raise invalid_arg(name)
    return BOOLEANS[args[name]]


def choice_arg(args: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`; the first if missing."""
    choice = args.get(name, choices[0])
    if choice not in choices:
        raise invalid_arg(name)
    return choice


def invalid_arg(name: str) -> HttpError:
    """The error for an argument with an invalid value."""
    return HttpError(400, f"INVALID_ARG_{name.upper()}")


def too_many_readers() -> Response:
    """The response when the maximum number of streams or waiting requests is reached."""
    retry = (("Retry-After", str(_RETRY_AFTER_SECONDS)),)
    return error_response(503, "TOO_MANY_READERS", extra_headers=retry)


def not_confirmed() -> HttpError:
    """The error when messages of earlier leaders of a replicated node are not confirmed yet."""
    return HttpError(503, "NOT_CONFIRMED")


@contextmanager
def storage_errors_as_http(log: Logger, request: Request) -> Iterator[None]:
    """Logs a StorageError and raises it as an HttpError: 503 for a reached limit, else 500."""
    try:
        yield
    except LimitReachedError as failure:
        log.error("failure in %s - %s", request.path, failure)
        raise HttpError(503, "LIMIT_REACHED") from failure
    except StorageError as failure:
        log.error("failure in %s - %s", request.path, failure)
        raise HttpError(500, "INTERNAL_ERROR") from failure
