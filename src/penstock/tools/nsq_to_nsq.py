"""nsq_to_nsq: the messages of topics, published again on other nsqds.

A message is finished when a destination has confirmed it, and requeued when none has; then the
consumer backs off. So a message may arrive twice, and does not get lost.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.client import ClientConfig, Consumer, Message, Producer
from penstock.common import names
from penstock.common.errors import ClientError, ConfigError
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
from penstock.tools.host_pool import EpsilonGreedy
from penstock.tools.json_filter import JsonFilter, NotJson
from penstock.tools.runner import consume_all, run_tool
from penstock.tools.timings import Timings

__all__ = ["RelayOptions", "check", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions(ConsumerOptions):
    """The options of nsq_to_nsq."""

    topic: tuple[str, ...] = option((), STRINGS, "topic to consume", key=None)
    channel: str = option("nsq_to_nsq", STRING, "channel to consume", key=None)
    destination_topic: str = option(
        "", STRING, "topic to publish to, whichever was consumed; without one, the same", key=None
    )
    destination_nsqd_tcp_address: tuple[str, ...] = option(
        (), STRINGS, "nsqd to publish to: host:port, or a unix socket's path", key=None
    )
    mode: str = option(
        "hostpool",
        STRING,
        "how a destination is chosen: hostpool and round-robin take turns and leave out what does"
        " not work, epsilon-greedy prefers the fast",
        key=None,
    )
    require_json_field: str = option(
        "", STRING, "pass only messages that are JSON and have this field", key=None
    )
    require_json_value: str = option(
        "", STRING, "pass only messages that have this value in the required field", key=None
    )
    whitelist_json_field: tuple[str, ...] = option(
        (), STRINGS, "of messages that are JSON, pass this field, and not those unnamed", key=None
    )
    status_every: int = option(
        250,
        INT,
        "requests between log lines on how long they took; 0 for none",
        key=None,
        at_least=0,
    )
    producer_opt: tuple[str, ...] = option(
        (), CLIENT_OPTIONS, "option of the producers: name,value, or name alone for true", key=None
    )


def check(options: RelayOptions) -> None:
    """Raises ConfigError if nsq_to_nsq cannot do as these options say."""
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


def run(options: RelayOptions, log: Logger) -> int:
    """Passes messages on until it is told to stop."""
    return run_tool(lambda stop: _relay(options, stop, log), log)


def _producer_config(options: RelayOptions) -> ClientConfig:
    return client_config("nsq_to_nsq", "--producer-opt", options.producer_opt)


async def _relay(options: RelayOptions, stop: asyncio.Event, log: Logger) -> int:
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
    """Where messages go. A producer is one."""

    async def publish(self, topic: str, body: bytes) -> None:
        """Returns when it is stored. Raises ClientError."""


class _Relay:
    """Passes on what comes from any consumer."""

    def __init__(self, options: RelayOptions, destination: Destination, log: Logger) -> None:
        self._topic = options.destination_topic
        self._concurrency = options.max_in_flight
        self._destination = destination
        self._filter = JsonFilter(
            options.require_json_field, options.require_json_value, options.whitelist_json_field
        )
        self._timings = Timings("aggregate", options.status_every, log)
        self._log = log

    async def run(self, consumer: Consumer) -> None:
        """Until the consumer is stopped."""
        topic = self._topic or consumer.topic
        await consumer.run(partial(self._pass_on, topic=topic), concurrency=self._concurrency)

    async def _pass_on(self, message: Message, topic: str) -> None:
        """What it raises makes the consumer requeue the message, and back off."""
        try:
            body = self._filter.filter(message.body)
        except NotJson as error:
            self._log.error("%s", error)
            return
        if body is None:
            return
        began = time.monotonic()
        await self._destination.publish(topic, body)
        self._timings.add(time.monotonic() - began)


async def _destination(options: RelayOptions, stack: AsyncExitStack, log: Logger) -> Destination:
    """Connected; closed by the stack. Raises ClientError if it cannot be reached."""
    addresses = tuple(dict.fromkeys(options.destination_nsqd_tcp_address))
    config = _producer_config(options)
    if options.mode != "epsilon-greedy" or len(addresses) == 1:
        return await stack.enter_async_context(Producer(addresses, config=config))
    producers = {
        address: await stack.enter_async_context(Producer(address, config=config))
        for address in addresses
    }
    return _Fastest(producers, options.status_every, log)


class _Fastest:
    """The faster a destination, the more it gets."""

    def __init__(self, producers: Mapping[str, Producer], status_every: int, log: Logger) -> None:
        self._producers = producers
        self._pool = EpsilonGreedy(list(producers))
        self._timings = {each: Timings(each, status_every, log) for each in producers}

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
