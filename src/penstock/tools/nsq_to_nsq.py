"""nsq_to_nsq: publish the messages of topics to other nsqds.

A message is finished when a destination has confirmed it. If none confirms, it is requeued and the
consumer backs off. So messages are never lost, but may arrive twice. The JSON filter selects
messages by a field, and fields by a whitelist; it passes values on byte for byte.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from penstock.client import ClientConfig, Consumer, Message, Producer
from penstock.common import names
from penstock.common.errors import ClientError, ConfigError, Error
from penstock.common.logs import Logger
from penstock.common.option_types import INT, STRING, STRINGS
from penstock.common.options import option
from penstock.tools.consumer_options import (
    CLIENT_OPTIONS,
    ConsumerOptions,
    check_source,
    client_config,
    consumer_config,
)
from penstock.tools.host_pool import EpsilonGreedy, RequestTimings
from penstock.tools.runner import consume_all, run_tool

__all__ = ["JsonFilter", "MissingFieldError", "NotJsonError", "NsqToNsqOptions", "check", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToNsqOptions(ConsumerOptions):
    """The options of nsq_to_nsq."""

    topic: tuple[str, ...] = option((), STRINGS, "topic to consume", key=None)
    channel: str = option("nsq_to_nsq", STRING, "channel to consume", key=None)
    destination_topic: str = option(
        "", STRING, "topic to publish to", key=None, default_text="the consumed topic"
    )
    destination_nsqd_tcp_address: tuple[str, ...] = option(
        (),
        STRINGS,
        "TCP address of a destination nsqd: host:port, or the path of a unix socket",
        key=None,
    )
    mode: str = option(
        "hostpool",
        STRING,
        "choice of the destination: hostpool and round-robin use the working ones in turn,"
        " epsilon-greedy prefers fast ones",
        key=None,
    )
    require_json_field: str = option(
        "", STRING, "publish only JSON messages with this field", key=None
    )
    require_json_value: str = option(
        "", STRING, "publish only messages with this value of the required field", key=None
    )
    whitelist_json_field: tuple[str, ...] = option(
        (), STRINGS, "field of JSON messages to publish; other fields are removed", key=None
    )
    status_every: int = option(
        250,
        INT,
        "number of messages between log lines with publish durations; 0 for no such lines",
        key=None,
        at_least=0,
    )
    producer_opt: tuple[str, ...] = option(
        (),
        CLIENT_OPTIONS,
        "client option of the producers: name,value, or name alone for true",
        key=None,
    )


def check(options: NsqToNsqOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    if not options.topic or not options.channel:
        raise ConfigError("--topic and --channel are required")
    if not all(map(names.is_valid, options.topic)):
        raise ConfigError("--topic is invalid")
    if options.destination_topic and not names.is_valid(options.destination_topic):
        raise ConfigError("--destination-topic is invalid")
    if not names.is_valid(options.channel):
        raise ConfigError("--channel is invalid")
    check_source(options)
    if not options.destination_nsqd_tcp_address:
        raise ConfigError("--destination-nsqd-tcp-address required")
    _producer_config(options)


def run(options: NsqToNsqOptions, log: Logger) -> int:
    """Republish messages until a signal stops it."""
    return run_tool(lambda stop: _relay(options, stop, log), log)


def _producer_config(options: NsqToNsqOptions) -> ClientConfig:
    return client_config("nsq_to_nsq", "--producer-opt", options.producer_opt)


async def _relay(options: NsqToNsqOptions, stop: asyncio.Event, log: Logger) -> int:
    config = consumer_config("nsq_to_nsq", options)
    consumers = [
        Consumer(
            topic,
            options.channel,
            nsqd=options.nsqd_tcp_address,
            lookupd=options.lookupd_http_address,
            config=config,
        )
        for topic in dict.fromkeys(options.topic)
    ]
    async with AsyncExitStack() as stack:
        relay = _Relay(options, await _destination(options, stack, log), log)
        await consume_all(consumers, relay.run, stop)
    return 0


class Destination(Protocol):
    """Publishes messages; implemented by `Producer`."""

    async def publish(self, topic: str, body: bytes) -> None:
        """Return when the message is stored. Raises ClientError."""


class _Relay:
    """Republishes the messages of all consumers."""

    def __init__(self, options: NsqToNsqOptions, destination: Destination, log: Logger) -> None:
        self._topic = options.destination_topic
        self._concurrency = options.max_in_flight
        self._destination = destination
        self._filter = JsonFilter(
            options.require_json_field, options.require_json_value, options.whitelist_json_field
        )
        self._timings = RequestTimings("aggregate", options.status_every, log)
        self._log = log

    async def run(self, consumer: Consumer) -> None:
        """Run until the consumer is stopped."""
        topic = self._topic or consumer.topic
        await consumer.run(partial(self._republish, topic=topic), concurrency=self._concurrency)

    async def _republish(self, message: Message, topic: str) -> None:
        """Publish a message. If this raises, the consumer requeues it and backs off."""
        try:
            body = self._filter.filter(message.body)
        except NotJsonError as error:
            self._log.error("%s", error)
            return
        if body is None:
            return
        began = time.monotonic()
        await self._destination.publish(topic, body)
        self._timings.add(time.monotonic() - began)


async def _destination(options: NsqToNsqOptions, stack: AsyncExitStack, log: Logger) -> Destination:
    """The connected destination; the stack closes it. Raises ClientError if it is unreachable."""
    addresses = tuple(dict.fromkeys(options.destination_nsqd_tcp_address))
    config = _producer_config(options)
    if options.mode != "epsilon-greedy" or len(addresses) == 1:
        return await stack.enter_async_context(Producer(addresses, config=config))
    producers = {
        address: await stack.enter_async_context(Producer(address, config=config))
        for address in addresses
    }
    return _FastestDestination(producers, options.status_every, log)


class _FastestDestination:
    """Publishes to several nsqds, preferring the fast ones."""

    def __init__(self, producers: Mapping[str, Producer], status_every: int, log: Logger) -> None:
        self._producers = producers
        self._pool = EpsilonGreedy(list(producers))
        self._timings = {each: RequestTimings(each, status_every, log) for each in producers}

    async def publish(self, topic: str, body: bytes) -> None:
        began = time.monotonic()
        address = self._pool.pick(began)
        try:
            await self._producers[address].publish(topic, body)
        except ClientError:
            self._pool.mark(address, time.monotonic(), 0, failed=True)
            raise
        ended = time.monotonic()
        self._pool.mark(address, ended, ended - began)
        self._timings[address].add(ended - began)


# An escape in a string; the group matches an unpaired surrogate.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)

# A number in Go's decimal notation. Python's also allows blanks and underscores.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class NotJsonError(Error):
    """The body is not a JSON object."""


class MissingFieldError(Error):
    """The body is a JSON object without the field whose value is required."""


class JsonFilter:
    """Filter for messages that are JSON objects. With `field`, only messages with this field pass;
    with `value`, only those whose field has this value. With `whitelist`, all other fields are
    removed from the messages that pass.

    null counts as an object without fields, as it does for Go's decoder.
    """

    def __init__(self, field: str = "", value: str = "", whitelist: Sequence[str] = ()) -> None:
        self._field = field
        self._value = value
        self._number = _number(value)
        self._whitelist = sorted(set(whitelist))

    @property
    def passes_all(self) -> bool:
        """Whether every message passes unchanged."""
        return not self._field and not self._whitelist

    def filter(self, body: bytes) -> bytes | None:
        """The body to publish; None if the message does not pass. Raises NotJsonError or
        MissingFieldError."""
        if self.passes_all:
            return body
        fields = _fields(body)
        if self._field and not self._matches(fields):
            return None
        return self._whitelisted(fields) if self._whitelist else body

    def _matches(self, fields: dict[str, msgspec.Raw]) -> bool:
        if self._field not in fields:
            if self._value:
                raise MissingFieldError(f"missing field {self._field!r} to check required value")
            return False
        if not self._value:
            return True
        raw = fields[self._field]
        value = msgspec.json.decode(raw)
        if isinstance(value, str):
            return value == self._value
        # nsq compat: numbers are compared as floats, and values of other kinds never match.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and _number(bytes(raw).decode()) == self._number

    def _whitelisted(self, fields: dict[str, msgspec.Raw]) -> bytes:
        passed = {name: fields[name] for name in self._whitelist if name in fields}
        return msgspec.json.encode(passed)


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of an object, with their values undecoded. Raises NotJsonError."""
    try:
        return _decode(body)
    except (ValueError, RecursionError):
        pass
    try:
        return _decode(_without_lone_surrogates(body))
    except (ValueError, RecursionError):
        shown = body[:200].decode("utf-8", "replace")
        raise NotJsonError(f"Unable to decode json: {shown}") from None


def _decode(body: bytes) -> dict[str, msgspec.Raw]:
    if not body.isascii():
        # nsq compat: bytes that are not UTF-8 are replaced, and do not make the JSON invalid.
        body = body.decode("utf-8", "replace").encode()
    msgspec.json.decode(body)  # a Raw value is not checked
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw] | None) or {}


def _without_lone_surrogates(body: bytes) -> bytes:
    """nsq compat: Go's decoder replaces them, while ours refuses them."""
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], body)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None
