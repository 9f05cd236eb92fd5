"""What happens to an nsqd and its disk while it is under load. Each returns when it is over."""

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
    """nsqd stands still, as on a machine that swaps or is moved."""
    nsqd.send_signal(signal.SIGSTOP)
    time.sleep(chance.uniform(*STOPPED_SECONDS))
    nsqd.send_signal(signal.SIGCONT)


def fill_disk(nsqd: NsqdProcess, chance: Random) -> None:
    """The kernel lets none of nsqd's files grow: every write fails, as it does on a full disk."""
    _, hard = resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (1, hard))
    time.sleep(chance.uniform(*FULL_SECONDS))
    resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (hard, hard))


def kill_and_restart(nsqd: NsqdProcess, chance: Random) -> None:
    """kill -9, and a new process on what is left."""
    nsqd.kill()
    nsqd.check_log()
    nsqd.check_data_path()
    time.sleep(chance.uniform(*DOWN_SECONDS))
    nsqd.restart()
