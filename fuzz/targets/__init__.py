"""Fuzz targets. Each module has `SEEDS` (initial inputs) and `check`, which raises if an input
fails. Targets with a grammar have `TOKENS`, which mutations may insert.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

__all__ = ["TARGETS", "Target", "load_target"]

TARGETS = {
    "wire_server": "commands of a client, as nsqd parses them",
    "wire_client": "frames of a server, as a client parses them",
    "layers": "snappy and deflate below the protocol",
    "http_server": "HTTP requests, as all daemons parse them",
    "log_recovery": "a log that a crash or a bad disk has left, as nsqd finds it",
    "log_files": "any bytes in place of a log's files",
    "lookupd": "nsqd's commands to nsqlookupd, and their effect on the registry",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A parser under test."""

    name: str
    seeds: Sequence[bytes]
    tokens: Sequence[bytes]
    check: Callable[[bytes], None]


def load_target(name: str) -> Target:
    """Import a target and the code that it tests."""
    module = import_module(f"fuzz.targets.{name}")
    return Target(name, module.SEEDS, getattr(module, "TOKENS", ()), module.check)
