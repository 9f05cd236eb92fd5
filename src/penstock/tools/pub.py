"""`penstock pub`: publish arguments, lines or a whole file, with confirmation.

Input is published as soon as it is read; fast input is published in large batches. On a terminal, a
progress bar is shown for large files.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.client import ClientConfig
from penstock.client.blocking import Producer
from penstock.common.errors import ClientError, ConfigError
from penstock.tools.display import format_count, progress_bar

__all__ = ["PubInput", "publish"]

READ_BYTES = 1 << 20

# Larger than any sensible --max-msg-size of nsqd.
MESSAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class PubInput:
    """The input: `bodies`, the file at `path`, or stdin. With `whole`, it is one message."""

    bodies: tuple[bytes, ...] = ()
    path: str | None = None
    whole: bool = False

    def batches(self) -> Iterator[tuple[list[bytes], int]]:
        """Batches of messages, each with the number of bytes read. Raises ConfigError."""
        if self.bodies:
            yield list(self.bodies), 0
            return
        try:
            descriptor = (
                sys.stdin.fileno() if self.path is None else os.open(self.path, os.O_RDONLY)
            )
            yield from _whole(descriptor) if self.whole else _lines(descriptor)
        except OSError as failure:
            name = self.path or "stdin"
            raise ConfigError(f"cannot read {name} - {failure.strerror}") from failure

    @property
    def size_bytes(self) -> int | None:
        """Size of the file; None if unknown."""
        return None if self.path is None else os.path.getsize(self.path)


def publish(
    topic: str,
    source: PubInput,
    *,
    nsqds: Sequence[str],
    lookupds: Sequence[str],
    options: Sequence[str] = (),
    defer: float = 0.0,
) -> None:
    """Publish the whole input. Raises ConfigError, or ClientError, which says how many messages
    were published before."""
    began, done = time.monotonic(), 0
    config = ClientConfig().with_options(options)
    with (
        Producer(nsqds, lookupd=lookupds, config=config) as producer,
        progress_bar(source.size_bytes) as bar,
    ):
        for bodies, read_bytes in source.batches():
            try:
                producer.publish_many(topic, bodies, defer=defer)
            except ClientError as failure:
                raise _after(failure, done) from failure
            done += len(bodies)
            if bar is not None:
                bar.update(
                    bar.task_ids[0], advance=read_bytes, description=format_count(done, "message")
                )
    if sys.stderr.isatty():
        sys.stderr.write(_summary(topic, done, time.monotonic() - began))


def _after(failure: ClientError, done: int) -> ClientError:
    return ClientError(f"{failure} (after {format_count(done, 'message')})") if done else failure


def _summary(topic: str, done: int, seconds: float) -> str:
    took = f" in {seconds:.1f} s" if seconds >= 1 else ""
    speed = f", {done / seconds:,.0f} per second" if done > seconds >= 1 else ""
    return f"{format_count(done, 'message')} published to {topic}{took}{speed}\n"


def _lines(descriptor: int) -> Iterator[tuple[list[bytes], int]]:
    rest = b""
    while chunk := os.read(descriptor, READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MESSAGE_BYTES_MAX:
            raise ConfigError(f"a line is longer than {MESSAGE_BYTES_MAX >> 20} MiB")
        bodies = [line for line in lines if line]
        if bodies:
            yield bodies, len(chunk)
    if rest:
        yield [rest], 0


def _whole(descriptor: int) -> Iterator[tuple[list[bytes], int]]:
    body = bytearray()
    while chunk := os.read(descriptor, READ_BYTES):
        body += chunk
        if len(body) > MESSAGE_BYTES_MAX:
            raise ConfigError(f"the message is longer than {MESSAGE_BYTES_MAX >> 20} MiB")
    if not body:
        raise ConfigError("the input is empty, and NSQ has no empty messages")
    yield [bytes(body)], len(body)
