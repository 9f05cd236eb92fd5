"""What is fuzzed. Each module has `SEEDS`, inputs to begin with, and `check`, which raises if an
input shows that something is wrong. Those with a grammar of their own have `TOKENS`, words that a
mutation may use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

__all__ = ["TARGETS", "Target", "load_target"]

TARGETS = {
    "wire_server": "a client's commands, as nsqd reads them",
    "wire_client": "a server's frames, as a client reads them",
    "layers": "snappy and deflate beneath the protocol",
    "http_server": "HTTP requests, as all daemons read them",
    "log_recovery": "a log that a crash or a bad disk has left, as nsqd finds it",
    "log_files": "any bytes in place of a log's files",
    "lookupd": "nsqd's commands to nsqlookupd, and what the registry makes of them",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Something that reads bytes."""

    name: str
    seeds: Sequence[bytes]
    tokens: Sequence[bytes]
    check: Callable[[bytes], None]


def load_target(name: str) -> Target:
    """Imports a target, and all that it tests."""
    module = import_module(f"fuzz.targets.{name}")
    return Target(name, module.SEEDS, getattr(module, "TOKENS", ()), module.check)
