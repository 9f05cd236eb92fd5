"""The process of a shard: a normal nsqd that takes signals only from its supervisor.

Shard and supervisor are connected by a socket:

- The supervisor sends signal numbers, one byte each, and the number of unresponsive shards, as a
  byte with its high bit set. Signals from other processes are blocked, because a terminal and
  systemd send a signal to all processes of a service, and a second signal forces an exit.
- The shard sends a heartbeat byte when it starts to serve or, as a member of a replicated node, to
  follow, and then one each HEARTBEAT_SECONDS.
- If the socket ends, the supervisor has died, and the shard stops cleanly.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn, TypeVarTuple

import uvloop

from penstock.common.errors import Error
from penstock.common.logs import Logger
from penstock.nsqd import daemon
from penstock.nsqd.shards import Shard

__all__ = ["FORWARDED", "HEARTBEAT_SECONDS", "become_shard", "unresponsive_count"]

_Args = TypeVarTuple("_Args")

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

HEARTBEAT_SECONDS = 1.0

_COUNT_FLAG = 0x80  # marks a count of unresponsive shards; signal numbers are lower
_COUNT_MAX = 0x7F


def unresponsive_count(count: int) -> int:
    """The byte that tells a shard how many shards of this nsqd are unresponsive."""
    return _COUNT_FLAG | min(count, _COUNT_MAX)


def become_shard(shard: Shard, supervisor: socket.socket) -> NoReturn:
    """Runs the shard, then exits. The first heartbeat is sent when it runs."""
    options = shard.options
    log = options.logger()
    exit_code = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, FORWARDED)
        exit_code = daemon.run(
            options,
            log,
            new_loop=partial(_ShardLoop, supervisor, log),
            when_running=partial(_when_running, supervisor),
            when_serving=partial(_when_serving, shard),
            preferred_rank=shard.preferred_rank,
        )
    except Error as error:
        log.fatal("%s", error)
    except BaseException:
        log.exception("a bug ends this shard")
    finally:
        os._exit(exit_code)


def _when_running(supervisor: socket.socket) -> None:
    _send_heartbeats(asyncio.get_running_loop(), supervisor)


def _when_serving(shard: Shard, nsqd: daemon.Nsqd) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _ShardLoop)
    loop.nsqd = nsqd
    if shard.is_retiring:
        nsqd.drain.start()


def _send_heartbeats(loop: asyncio.AbstractEventLoop, supervisor: socket.socket) -> None:
    # If the supervisor is suspended, the socket buffer may be full; then the heartbeat is skipped.
    with suppress(OSError):
        supervisor.send(b"+", socket.MSG_DONTWAIT)
    loop.call_later(HEARTBEAT_SECONDS, _send_heartbeats, loop, supervisor)


class _ShardLoop(uvloop.Loop):
    """An event loop that receives signals from the supervisor's socket, not from the kernel."""

    def __init__(self, supervisor: socket.socket, log: Logger) -> None:
        super().__init__()
        self.nsqd: daemon.Nsqd | None = None  # set when it serves
        self._supervisor = supervisor
        self._log = log
        self._handlers: dict[int, Callable[[], object]] = {}
        self.add_reader(supervisor, self._on_supervisor_data)

    def add_signal_handler(
        self, sig: int, callback: Callable[[*_Args], object], *args: *_Args
    ) -> None:
        self._handlers[sig] = partial(callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._handlers.pop(sig, None) is not None

    def _on_supervisor_data(self) -> None:
        numbers = _receive(self._supervisor)
        if not numbers:
            self.remove_reader(self._supervisor)
            self._log.error("the supervisor is gone")
            numbers = bytes([signal.SIGINT])
        for number in numbers:
            if number & _COUNT_FLAG:
                if self.nsqd is not None:
                    self.nsqd.unresponsive_shards = number & _COUNT_MAX
            elif number in self._handlers:
                self._handlers[number]()


def _receive(peer: socket.socket) -> bytes:
    try:
        return peer.recv(64)
    except OSError:
        return b""
