"""Distribution of the tests to several workers (`--dist loadgroup`).

A chain is a group of tests that one worker runs one after the other: tests that share a program
which takes long to start, or tests that must not run at the same time. The chains are started
first, the longest one at the front, so that no long chain is left for the end. All other tests are
distributed by file; those of the files in `APART`, which are long and share nothing, one by one.

xdist has groups of its own, but it marks them in the id of a test, where pytest does not expect
them.
"""

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByChain", "longest_chains_first"]

# Folders and files of each chain. The entry of a file takes precedence over that of its folder.
CHAINS = {
    "one Spark": ["tests/spark", "tests/pipelines", "tests/examples"],
    "Sparks of their own": [
        "tests/cli/test_pipelines.py",
        "tests/docs/test_pages.py",
        "tests/pipelines/test_stream_declarative.py",
        "tests/spark/test_cluster.py",
    ],
    "heavy": [
        "tests/bench/test_crowd.py",
        "tests/crash/test_nsqd_kill.py",
        "tests/interop/test_discovery.py",
        "tests/nsqd/test_daemon_scale.py",
        "tests/soaking",
    ],
    "one browser": ["tests/browser"],
}
# Files whose tests are distributed one by one.
APART = [
    "tests/bench/test_bench.py",
    "tests/fuzzing/test_fuzz.py",
    "tests/storage/test_model.py",
    "tests/simulation/test_simulation.py",
]

_CHAIN_OF = {path: chain for chain, paths in CHAINS.items() for path in paths}
_RANKS = {chain: rank for rank, chain in enumerate(CHAINS)}


class ByChain(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out chains and files in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return chain_of(file) or (nodeid if file in APART else file)


def longest_chains_first(items: list[pytest.Item]) -> None:
    """Sort the collected tests by chain; the order within a chain stays."""
    items.sort(key=_rank)


def chain_of(file: str) -> str | None:
    """The chain of a file, or of the folder that contains it; None if there is none."""
    path = PurePosixPath(file)
    places = (_CHAIN_OF.get(str(each)) for each in (path, *path.parents))
    return next((chain for chain in places if chain), None)


def _rank(item: pytest.Item) -> int:
    chain = chain_of(item.nodeid.partition("::")[0])
    return _RANKS.get(chain or "", len(_RANKS))
