"""`penstock sub`: consume a channel and print its messages.

A message is finished after it is written to stdout. If the command is cancelled before that, the
message is requeued.
"""

import asyncio
import logging
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import UNSET, UnsetType

from penstock.client import ClientConfig, Consumer, Message
from penstock.common.errors import ClientError
from penstock.tools.stdout_writer import open_stdout

__all__ = ["print_messages"]


class _Line(msgspec.Struct):
    id: str
    timestamp_ns: int
    attempts: int
    nsqd: str
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


async def print_messages(
    topic: str,
    channel: str,
    *,
    nsqds: Sequence[str],
    lookupds: Sequence[str],
    warn: Callable[[str], None],
    options: Sequence[str] = (),
    count: int | None = None,
    timeout_seconds: float | None = None,
    as_json: bool = False,
    max_in_flight: int = 200,
) -> None:
    """Print `count` messages. Warn of a lost nsqd and reconnect. Raises ClientError, also if no
    message arrives within the timeout; ConfigError; BrokenPipeError if stdout is closed by its
    reader; Error if stdout cannot be written."""
    output = open_stdout()
    line_of = _json_line if as_json else _body_line
    left = count
    in_flight = min(max_in_flight, count or max_in_flight)
    consumer = Consumer(
        topic,
        channel,
        nsqd=nsqds,
        lookupd=lookupds,
        max_in_flight=in_flight,
        config=ClientConfig().with_options(options),
    )
    with _client_warnings_to(warn):
        await consumer.start()
    messages: list[Message] = []
    # The reader of the output may be slow, such as a pager.
    touching = asyncio.create_task(consumer.keep_touching(lambda: messages))
    try:
        with _client_warnings_to(warn):
            while left is None or left > 0:
                messages = await _next_messages(consumer, left or in_flight, timeout_seconds)
                await output.show(messages, b"".join(map(line_of, messages)))
                left = None if left is None else left - len(messages)
    finally:
        touching.cancel()
        await consumer.close()


@contextmanager
def _client_warnings_to(warn: Callable[[str], None]) -> Iterator[None]:
    clients, handler = logging.getLogger("penstock.client"), _WarningHandler(warn)
    clients.addHandler(handler)
    clients.propagate = False
    try:
        yield
    finally:
        clients.propagate = True
        clients.removeHandler(handler)


class _WarningHandler(logging.Handler):
    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        self._warn(record.getMessage())


async def _next_messages(
    consumer: Consumer, count_max: int, timeout_seconds: float | None
) -> list[Message]:
    try:
        async with asyncio.timeout(timeout_seconds):
            return await consumer.batch(count_max)
    except TimeoutError:
        raise ClientError(f"no message within {timeout_seconds:g} s") from None


def _body_line(message: Message) -> bytes:
    return message.body + b"\n"


def _json_line(message: Message) -> bytes:
    line = _Line(message.id.decode(), message.timestamp_ns, message.attempts, message.address)
    try:
        line.body = message.body.decode()
    except UnicodeDecodeError:
        line.body_base64 = b64encode(message.body).decode()
    return msgspec.json.encode(line) + b"\n"
