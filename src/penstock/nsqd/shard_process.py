"""A shard's own process: an nsqd as it always is, but for whom it listens to.

The supervisor hands it signals over a socket, one byte each. Signals that others send to it are
blocked, because those who stop a program often tell all its processes (a terminal, systemd), and to
be told twice means to end at once. When the socket ends the supervisor is gone, and so is the shard
a moment later, after a clean stop.
"""

import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeVarTuple

import uvloop

from penstock.errors import Error
from penstock.logs import Logger
from penstock.nsqd import daemon
from penstock.nsqd.shards import Shard

__all__ = ["FORWARDED", "become_shard"]

_Args = TypeVarTuple("_Args")

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def become_shard(shard: Shard, supervisor: socket.socket) -> NoReturn:
    """Serves until the end, which is also this process's. It says on the socket when it serves."""
    options = shard.options
    log = options.logger()
    exit_code = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, FORWARDED)
        exit_code = daemon.run(
            options,
            log,
            new_loop=partial(_ShardLoop, supervisor, log),
            when_serving=partial(_when_serving, shard, supervisor),
        )
    except Error as error:
        log.fatal("%s", error)
    except BaseException:
        log.exception("a bug ends this shard")
    finally:
        os._exit(exit_code)


def _when_serving(shard: Shard, supervisor: socket.socket, nsqd: daemon.Nsqd) -> None:
    supervisor.send(b"+")
    if shard.is_retiring:
        nsqd.drain.start()


class _ShardLoop(uvloop.Loop):
    """A loop whose signals come from the supervisor."""

    def __init__(self, supervisor: socket.socket, log: Logger) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._log = log
        self._handlers: dict[int, Callable[[], object]] = {}
        self.add_reader(supervisor, self._obey)

    def add_signal_handler(
        self, sig: int, callback: Callable[[*_Args], object], *args: *_Args
    ) -> None:
        self._handlers[sig] = partial(callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._handlers.pop(sig, None) is not None

    def _obey(self) -> None:
        numbers = _received(self._supervisor)
        if not numbers:
            self.remove_reader(self._supervisor)
            self._log.error("the supervisor is gone")
            numbers = bytes([signal.SIGINT])
        for number in numbers:
            if number in self._handlers:
                self._handlers[number]()


def _received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(64)
    except OSError:
        return b""
