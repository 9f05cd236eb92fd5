"""nsq_tail: print the messages of topics, one per line.

A message is finished after it is written. A slow reader of the output delays messages, but not
heartbeats or the exit. When the reader closes the pipe, nsq_tail exits with 0.
"""

import asyncio
import random
import select
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.client import Consumer, Message
from penstock.common.errors import ConfigError
from penstock.common.logs import Logger
from penstock.common.option_types import BOOL, INT, STRING, STRINGS
from penstock.common.options import option
from penstock.tools.consumer_options import ConsumerOptions, check_source, consumer_config
from penstock.tools.runner import consume_all, run_tool
from penstock.tools.stdout_writer import StdoutWriter, open_stdout

__all__ = ["NsqTailOptions", "check", "run"]

# Time limit for printing the received messages after a signal.
STOP_SECONDS = 0.5

# Interval between checks whether the output is still read.
READER_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqTailOptions(ConsumerOptions):
    """The options of nsq_tail."""

    topic: tuple[str, ...] = option((), STRINGS, "topic to print", key=None)
    channel: str = option(
        "",
        STRING,
        "channel to consume",
        key=None,
        default_text="a new ephemeral channel",
    )
    n: int = option(
        0, INT, "total number of messages to print; 0 for no limit", key=None, at_least=0
    )
    print_topic: bool = option(False, BOOL, "print the topic before each message", key=None)


def check(options: NsqTailOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    if not options.topic:
        raise ConfigError("--topic required")
    check_source(options)


def run(options: NsqTailOptions, log: Logger) -> int:
    """Print messages until `-n` is reached, a signal arrives, or the output is closed."""
    return run_tool(lambda stop: _tail(options, stop), log)


async def _tail(options: NsqTailOptions, stop: asyncio.Event) -> int:
    config = consumer_config("nsq_tail", options)
    channel = options.channel or f"tail{random.randrange(999_999):06d}#ephemeral"  # noqa: S311
    max_in_flight = min(options.max_in_flight, options.n or options.max_in_flight)
    consumers = [
        Consumer(
            topic,
            channel,
            nsqd=options.nsqd_tcp_address,
            lookupd=options.lookupd_http_address,
            max_in_flight=max_in_flight,
            config=config,
        )
        for topic in dict.fromkeys(options.topic)
    ]
    tail = _Tail(open_stdout(), count_max=options.n, print_topic=options.print_topic)
    watching = asyncio.create_task(tail.watch_reader(stop))
    try:
        await consume_all(consumers, tail.show, stop, stop_seconds=STOP_SECONDS)
    finally:
        watching.cancel()
    return 0


class _Tail:
    """Prints the messages of all topics."""

    def __init__(self, output: StdoutWriter, *, count_max: int, print_topic: bool) -> None:
        self._output = output
        self._left = count_max or sys.maxsize
        self._print_topic = print_topic

    async def show(self, consumer: Consumer) -> None:
        """Print the messages of a consumer until `-n` is reached or the output is closed."""
        prefix = f"{consumer.topic} | ".encode() if self._print_topic else b""
        messages: list[Message] = []
        # The reader of the output may be slow, such as a pager.
        touching = asyncio.create_task(consumer.keep_touching(lambda: messages))
        try:
            while self._left and (messages := await consumer.batch()):
                await self._show(prefix, messages)
        except BrokenPipeError:
            pass
        finally:
            touching.cancel()

    async def _show(self, prefix: bytes, messages: list[Message]) -> None:
        shown, rest = messages[: self._left], messages[self._left :]
        self._left -= len(shown)
        for message in rest:
            message.requeue()
        await self._output.show(shown, _lines(prefix, shown))

    async def watch_reader(self, stop: asyncio.Event) -> None:
        """Set `stop` when the output is closed, even if there is nothing to write."""
        poll = select.poll()
        poll.register(self._output.fd, 0)
        # An event loop can only wait for a writable pipe, which this one nearly always is.
        while not any(events & select.POLLERR for _, events in poll.poll(0)):  # noqa: ASYNC110
            await asyncio.sleep(READER_CHECK_SECONDS)
        stop.set()


def _lines(prefix: bytes, messages: Iterable[Message]) -> bytes:
    return b"".join([b"%b%b\n" % (prefix, message.body) for message in messages])
