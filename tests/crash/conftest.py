"""Fixtures of several crash tests."""

import os

import pytest
from tests.crash.disks import disk
from tests.crash.leader import RunNsqd, run_leader

from penstock.testing.etcd import has_etcd
from penstock.testing.nsqd import run_nsqd as run_single_nsqd

__all__ = ["disk"]

# REPLICATED=1 runs all tests of a single nsqd on the leader of a replicated node instead. By
# default only tests with the marker on_leader run on both.
IS_REPLICATED = bool(os.environ.get("REPLICATED"))


@pytest.fixture(params=["single", "leader"])
def run_nsqd(request: pytest.FixtureRequest) -> RunNsqd:
    """Runs a single nsqd, or three members of which the leader is used."""
    if request.param == "single":
        return run_single_nsqd
    if not has_etcd():
        pytest.skip("needs etcd; `make test` installs it")
    return run_leader


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unselected = [item for item in items if not _is_selected(item)]
    if unselected:
        config.hook.pytest_deselected(items=unselected)
        items[:] = [item for item in items if _is_selected(item)]


def _is_selected(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    kind = callspec.params.get("run_nsqd") if callspec is not None else None
    if kind == "single":
        return not IS_REPLICATED
    if kind == "leader":
        return IS_REPLICATED or item.get_closest_marker("on_leader") is not None
    return True
