"""Faults of an nsqd under load. Each function returns when its fault is over."""

import resource
import signal
import time
from collections.abc import Callable
from random import Random

from penstock.testing.nsqd import NsqdProcess

__all__ = ["Fault", "fill_disk", "kill_and_restart", "stop_and_continue"]

Fault = Callable[[NsqdProcess, Random], None]

STOPPED_SECONDS = (1.0, 4.0)
FULL_SECONDS = (2.0, 6.0)
DOWN_SECONDS = (0.0, 2.0)


def stop_and_continue(nsqd: NsqdProcess, chance: Random) -> None:
    """Suspend nsqd, as on a machine that swaps or is migrated."""
    nsqd.send_signal(signal.SIGSTOP)
    time.sleep(chance.uniform(*STOPPED_SECONDS))
    nsqd.send_signal(signal.SIGCONT)


def fill_disk(nsqd: NsqdProcess, chance: Random) -> None:
    """Make all writes fail, as on a full disk, by a limit on file size."""
    _, hard = resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (1, hard))
    time.sleep(chance.uniform(*FULL_SECONDS))
    resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (hard, hard))


def kill_and_restart(nsqd: NsqdProcess, chance: Random) -> None:
    """Kill nsqd (SIGKILL) and restart it."""
    nsqd.kill()
    nsqd.check_log()
    nsqd.check_data_path()
    time.sleep(chance.uniform(*DOWN_SECONDS))
    nsqd.restart()
