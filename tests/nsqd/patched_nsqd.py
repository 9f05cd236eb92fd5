"""An nsqd with a patch that causes rare events on demand.

    python -m tests.nsqd.patched_nsqd raise=penstock.broker.topic:Topic.publish FLAGS...
    python -m tests.nsqd.patched_nsqd hold-fsync=FILE FLAGS...

`raise` makes a function raise an AssertionError at its first call for the topic or channel named
`faulty`; a function without a single topic raises at its first call. `hold-fsync` blocks every
fsync while the file exists.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.cli.nsqd import main
from penstock.testing.daemon import running
from penstock.testing.nsqd import NsqdProcess

__all__ = ["FAULTY", "INJECTED", "PatchedNsqd", "run_patched_nsqd"]

FAULTY = "faulty"
INJECTED = "AssertionError: injected"

_POLL_SECONDS = 0.01


@contextmanager
def run_patched_nsqd(patch: str, *flags: str, data_path: Path) -> Iterator["PatchedNsqd"]:
    """Run nsqd with one of these patches."""
    with running(lambda log_fd: PatchedNsqd(patch, data_path, flags, log_fd)) as nsqd:
        yield nsqd


class PatchedNsqd(NsqdProcess):
    """The process of a patched nsqd."""

    def __init__(self, patch: str, data_path: Path, flags: Sequence[str], log_fd: int) -> None:
        super().__init__(data_path, flags, log_fd)
        self._patch = patch

    def check_log(self) -> None:
        """The only tracebacks are of the injected exception."""
        assert self.log.count("Traceback") == self.log.count(INJECTED), self.log

    def _command(self) -> list[str]:
        python, _, _, *flags = super()._command()
        return [python, "-m", "tests.nsqd.patched_nsqd", self._patch, *flags]


def _apply(patch: str) -> None:
    kind, _, value = patch.partition("=")
    if kind == "raise":
        _raise_at(value)
    else:
        assert kind == "hold-fsync", patch
        _hold_fsync(Path(value))


def _raise_at(point: str) -> None:
    module, _, path = point.partition(":")
    class_name, _, name = path.partition(".")
    owner = getattr(import_module(module), class_name)
    original: Callable[..., Any] = getattr(owner, name)
    has_raised = False

    def faulty(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal has_raised
        if not has_raised and _is_faulty(self):
            has_raised = True
            raise AssertionError("injected")
        return original(self, *args, **options)

    setattr(owner, name, faulty)


def _is_faulty(target: object) -> bool:
    """Whether the object belongs to the topic or channel `faulty`, or to no single topic."""
    names = [getattr(target, each, None) for each in ("name", "path", "_folder")]
    known = [name for name in names if isinstance(name, str)]
    return not known or any(FAULTY in name for name in known)


def _hold_fsync(while_exists: Path) -> None:
    fsync = os.fsync

    def held(fd: int) -> None:
        while while_exists.exists():
            time.sleep(_POLL_SECONDS)
        fsync(fd)

    setattr(os, "fsync", held)  # noqa: B010 (the types differ)


if __name__ == "__main__":
    _apply(sys.argv.pop(1))
    main()
