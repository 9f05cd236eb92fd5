"""Scenarios that measure the start time and the memory of an idle server."""

import signal
import time
from collections.abc import Mapping

from bench.driving import CHANNEL, TOPIC, megabytes, publish
from bench.figures import Figures
from bench.targets import Server

__all__ = ["idle", "restart"]

IDLE_SECONDS = 0.5


def idle(server: Server, _count: int) -> Mapping[str, Figures]:
    time.sleep(IDLE_SECONDS)
    return {"idle": {"start_s": server.start_seconds, "idle_mb": megabytes(server.rss_bytes())}}


def restart(server: Server, count: int) -> Mapping[str, Figures]:
    """Restart with a backlog: after a clean stop, and after a kill."""
    server.wire.create(server.at, TOPIC, [CHANNEL])
    publish(server, count)
    stopped = server.restart(signal.SIGTERM)
    after_stop = _first_figures(stopped)
    killed = stopped.restart(signal.SIGKILL)
    return {"restart-stopped": after_stop, "restart-killed": _first_figures(killed)}


def _first_figures(server: Server) -> Figures:
    """The time to the first message includes the connection of the load."""
    began = time.perf_counter()
    reader = server.wire.reader(server.at, TOPIC, CHANNEL, ahead=1)
    with reader.open():
        reader.begin()
        while not reader.receive():
            pass
        first_s = server.start_seconds + time.perf_counter() - began
    return {
        "start_s": server.start_seconds,
        "first_message_s": first_s,
        "peak_mb": megabytes(server.peak_rss_bytes()),
    }
