"""nsq_tail: the messages of topics on standard output, each on a line of its own.

A message is finished once it has been written, the last one too. Whoever reads slowly holds up the
messages, but not our heartbeats, nor our end. When nobody reads any more, that is the end, and no
error.
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

# How long what is here may take to be shown, once we are to leave.
LEAVING_SECONDS = 0.5

# How often we look whether there is still a reader, when there is nothing to write.
READER_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqTailOptions(ConsumerOptions):
    """The options of nsq_tail."""

    topic: tuple[str, ...] = option((), STRINGS, "topic to show", key=None)
    channel: str = option(
        "", STRING, "channel to consume; without one, our own that goes when we go", key=None
    )
    n: int = option(0, INT, "messages to show in all; 0 for no end", key=None, at_least=0)
    print_topic: bool = option(False, BOOL, "show a message's topic before it", key=None)


def check(options: NsqTailOptions) -> None:
    """Raises ConfigError if nsq_tail cannot do as these options say."""
    if not options.topic:
        raise ConfigError("--topic required")
    check_source(options)


def run(options: NsqTailOptions, log: Logger) -> int:
    """Shows messages until there are enough, or it is told to stop, or nobody reads them."""
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
        await consume_all(consumers, tail.show, stop, leaving_seconds=LEAVING_SECONDS)
    finally:
        watching.cancel()
    return 0


class _Tail:
    """What is shown, of all topics together."""

    def __init__(self, output: StdoutWriter, *, count_max: int, print_topic: bool) -> None:
        self._output = output
        self._left = count_max or sys.maxsize
        self._print_topic = print_topic

    async def show(self, consumer: Consumer) -> None:
        """Shows what comes, until there has been enough, or nobody reads it."""
        prefix = f"{consumer.topic} | ".encode() if self._print_topic else b""
        messages: list[Message] = []
        # Whoever reads us may take long, as a pager does.
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
        """Sets `stop` when there is nobody to write for, though there be nothing to write."""
        poll = select.poll()
        poll.register(self._output.fd, 0)
        # The loop can wait until there is room to write, but there nearly always is.
        while not any(events & select.POLLERR for _, events in poll.poll(0)):  # noqa: ASYNC110
            await asyncio.sleep(READER_CHECK_SECONDS)
        stop.set()


def _lines(prefix: bytes, messages: Iterable[Message]) -> bytes:
    return b"".join([b"%b%b\n" % (prefix, message.body) for message in messages])
