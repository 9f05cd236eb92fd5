"""nsqd is suspended, or its wall clock is set: only messages that timed out are redelivered.

The kernel can suspend a process, but cannot set the wall clock of a single one. To set the clock,
the tests run the real nsqd with one change: a file contains an offset that nsqd adds to the system
time.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.crash.leader import RunNsqd
from tests.crash.steady_load import SteadyLoad, received

from penstock.protocol import commands
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.crash

# Duration of a suspension; STOP_SECONDS=30 for a long run.
STOP_SECONDS = float(os.environ.get("STOP_SECONDS", "2"))

HOUR_SECONDS = 3600


def test_after_a_suspension_clients_continue_and_timed_out_messages_are_redelivered(
    run_nsqd: RunNsqd,
) -> None:
    with run_nsqd("--msg-timeout=5s") as nsqd:
        held = nsqd.consumer("held", "c")
        nsqd.publish("held", b"x")
        first = held.message()
        with SteadyLoad(nsqd) as load:
            load.await_progress()
            nsqd.send_signal(signal.SIGSTOP)
            time.sleep(STOP_SECONDS)
            nsqd.send_signal(signal.SIGCONT)
            load.await_progress()
        again = held.message()
        held.send(commands.fin(again.id))

        assert (first.id, 2) == (again.id, again.attempts)
        wait_until(lambda: nsqd.shows("held", "c", depth=0, timeout_count=1), "the FIN")
        assert [] == load.refusals
        assert set() == load.acknowledged - received(nsqd, load.acknowledged)


def test_a_fin_sent_during_a_suspension_is_accepted(run_nsqd: RunNsqd) -> None:
    """Repeated, because after SIGCONT the event loop may process either timers or sockets first."""
    with run_nsqd("--msg-timeout=3s") as nsqd:
        client = nsqd.consumer("t", "c")
        for _ in range(4):
            nsqd.publish("t", b"x")
            message = client.message()
            nsqd.send_signal(signal.SIGSTOP)
            client.send(commands.fin(message.id))
            time.sleep(3.1)  # longer than the message timeout
            nsqd.send_signal(signal.SIGCONT)
            wait_until(lambda: nsqd.shows("t", "c", in_flight_count=0, depth=0), "the FIN")

        assert nsqd.shows("t", "c", timeout_count=0)


def test_a_suspension_closes_no_connection(run_nsqd: RunNsqd) -> None:
    """One client has answered the heartbeat during the suspension, the other has not."""
    with run_nsqd() as nsqd:
        answering, silent = nsqd.connect(), nsqd.connect()
        for client in (answering, silent):
            client.identify(heartbeat_interval=2000)
        nsqd.send_signal(signal.SIGSTOP)
        time.sleep(4.5)  # more than two heartbeat intervals
        answering.send(commands.nop())
        nsqd.send_signal(signal.SIGCONT)

        for client in (answering, silent):
            client.send(commands.pub("t", b"x"))
            assert b"OK" == client.response()


PROGRAM = """
import sys, time
from penstock.common.clock import SystemClock
from penstock.cli.nsqd import main

offset = open(sys.argv[1], "rb", buffering=0)

def wall_ns():
    offset.seek(0)
    return time.time_ns() + int(offset.read())

SystemClock.wall_ns = staticmethod(wall_ns)
sys.exit(main(sys.argv[2:]))
"""


class WallClock:
    """The wall clock of an nsqd, which can be set."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self.set(0)

    def set(self, offset_seconds: int) -> None:
        """Set the offset from the system time."""
        # Overwritten in place, because nsqd may be reading it. All offsets have the same length.
        file = os.open(self._offset, os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, b"%+025d" % (offset_seconds * 10**9), 0)
        os.close(file)

    @property
    def program(self) -> list[str]:
        """Start of the command of an nsqd with this clock."""
        return [sys.executable, "-c", PROGRAM, str(self._offset)]


@pytest.fixture
def wall_clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


@pytest.mark.parametrize("step", [-HOUR_SECONDS, HOUR_SECONDS], ids=["back", "forward"])
def test_setting_the_clock_moves_no_timeout_and_loses_no_message(
    run_nsqd: RunNsqd, wall_clock: WallClock, step: int
) -> None:
    with run_nsqd(program=wall_clock.program) as nsqd:
        holder = nsqd.consumer("held", "c")
        nsqd.publish("held", b"x")
        held = holder.message()
        with SteadyLoad(nsqd) as load:
            for offset in (step, 0, step):
                load.await_progress()
                wall_clock.set(offset)
            load.await_progress()
            deferred = nsqd.consumer("deferred", "c")
            began = time.monotonic()
            nsqd.connect().call(commands.dpub("deferred", 300, b"y"))
            assert b"y" == deferred.message().body
            assert 0.3 <= time.monotonic() - began
        holder.send(commands.fin(held.id))
        wait_until(lambda: nsqd.shows("held", "c", depth=0, in_flight_count=0), "the FIN")

        assert 0 == nsqd.stats("held", "c")["timeout_count"]
        nsqd.restart()
        nsqd.publish("t", b"last")
        wanted = load.acknowledged | {b"last"}
        assert set() == wanted - received(nsqd, wanted)


@pytest.mark.on_leader
def test_deferred_messages_follow_the_wall_clock(run_nsqd: RunNsqd, wall_clock: WallClock) -> None:
    """A restart, too, delivers a deferred message at its wall-clock time."""
    with run_nsqd(program=wall_clock.program) as nsqd:
        consumer = nsqd.consumer("t", "c")
        nsqd.connect().call(commands.dpub("t", HOUR_SECONDS * 1000, b"x"))
        wait_until(lambda: nsqd.shows("t", "c", deferred_count=1), "the message")
        wall_clock.set(HOUR_SECONDS + 1)

        assert b"x" == consumer.message().body
