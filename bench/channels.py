"""python -m bench.channels: cost of ten thousand channels in nsqd.

Measures the time to create them, to answer /stats, to stop and to start; CPU and memory of an idle
nsqd; and the lateness of deferred messages.
"""

import time
from collections.abc import Callable
from http.client import HTTPConnection

import click

from bench import procfs
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

__all__ = ["main", "measure"]

CHANNELS_PER_TOPIC = 10
IDLE_SECONDS = 5.0
IDLE_SHARE_MAX = 0.01
TIMERS, DEFER_MS = 5, 100


def measure(topics: int, idle_seconds: float) -> dict[str, float]:
    """Results by name; the unit is part of the name."""
    with run_nsqd() as nsqd:
        figures = {"create, s": _seconds(lambda: _create(nsqd, topics))}
        figures["/stats as JSON, s"] = _seconds(lambda: nsqd.http("GET", "/stats?format=json"))
        figures["/stats as text, s"] = _seconds(lambda: nsqd.http("GET", "/stats"))
        wait_until(lambda: _share_of_a_core(nsqd, 0.5) < IDLE_SHARE_MAX, "nsqd to be idle")
        figures["idle, % of a core"] = 100 * _share_of_a_core(nsqd, idle_seconds)
        figures["resident, MB"] = procfs.rss_bytes(nsqd.pid) / 1e6
        figures["timers late by, ms (median)"] = _timer_lateness_ms(nsqd)
        figures["stop, s"] = _seconds(nsqd.terminate)
        figures["start, s"] = _seconds(nsqd.start)
    return figures


@click.command()
@click.option("--topics", default=1_000, show_default=True, help="Topics of ten channels each.")
@click.option("--idle-seconds", default=IDLE_SECONDS, show_default=True, help="Time spent idle.")
def main(*, topics: int, idle_seconds: float) -> None:
    """Measure nsqd with many topics and channels."""
    for name, figure in measure(topics, idle_seconds).items():
        click.echo(f"{name}: {figure:.2f}")


def _seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def _create(nsqd: NsqdProcess, topics: int) -> None:
    connection = HTTPConnection(nsqd.http_address, timeout=60)
    for topic in range(topics):
        _post(connection, f"/topic/create?topic=topic-{topic}")
        for channel in range(CHANNELS_PER_TOPIC):
            _post(connection, f"/channel/create?topic=topic-{topic}&channel=channel-{channel}")
    connection.close()


def _post(connection: HTTPConnection, target: str) -> None:
    connection.request("POST", target)
    response = connection.getresponse()
    response.read()
    assert response.status == 200, target


def _share_of_a_core(nsqd: NsqdProcess, seconds: float) -> float:
    before, began = procfs.cpu_seconds(nsqd.pid), time.monotonic()
    time.sleep(seconds)
    return (procfs.cpu_seconds(nsqd.pid) - before) / (time.monotonic() - began)


def _timer_lateness_ms(nsqd: NsqdProcess) -> float:
    client = nsqd.consumer("topic-0", "channel-5")
    lateness = []
    for _ in range(TIMERS):
        client.call(commands.dpub("topic-0", DEFER_MS, b"x"))
        answered = time.monotonic()
        message = client.message()
        lateness.append((time.monotonic() - answered) * 1000 - DEFER_MS)
        client.send(commands.fin(message.id))
    client.close()
    return sorted(lateness)[TIMERS // 2]


if __name__ == "__main__":
    main()
