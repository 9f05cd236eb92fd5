"""Which tests follow one another on one worker, when there are several (`--dist loadgroup`).

A chain shares what takes long to start, or has what must not run beside its like. Chains come
first, the longest at the front, so that none is left for the end. What is in no chain goes file by
file, to whoever is free; files whose tests are long, and share nothing, test by test.

xdist's own groups are marked in a test's id, in a place where pytest no longer looks for it.
"""

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["ByChain", "longest_chains_first"]

# By their folders and files; a file comes before its folder.
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
# Test by test.
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
    """Sorts what was collected; the order within a chain stays."""
    items.sort(key=_rank)


def chain_of(file: str) -> str | None:
    """The file's own, or that of a folder."""
    path = PurePosixPath(file)
    places = (_CHAIN_OF.get(str(each)) for each in (path, *path.parents))
    return next((chain for chain in places if chain), None)


def _rank(item: pytest.Item) -> int:
    chain = chain_of(item.nodeid.partition("::")[0])
    return _RANKS.get(chain or "", len(_RANKS))
