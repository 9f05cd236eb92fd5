"""Several replicated nodes on each machine: `--nodes`."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.common.errors import ConfigError
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.shards import PORT_STEP, nodes_of
from penstock.replication.etcd import read_cluster
from penstock.replication.etcd_client import EtcdConfig
from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import EtcdProcess, has_etcd, run_etcd
from penstock.testing.replicated import FAST_TAKEOVER, MemberProcess
from penstock.testing.waiting import wait_until


@contextmanager
def reserved_ports(count: int) -> Iterator[str]:
    """An address whose port, and those `PORT_STEP` higher, are reserved."""
    while True:
        with ExitStack() as stack:
            address = stack.enter_context(reserved_address())
            port = int(address.rpartition(":")[2])
            try:
                for number in range(1, count):
                    stack.enter_context(reserved_address(port + number * PORT_STEP))
            except (OSError, OverflowError):
                continue
            yield address
            return


class Machine(MemberProcess):
    """One machine with all nodes. It is ready when both processes answer HTTP."""

    def check_data_path(self) -> None:
        pass  # The data paths of the nodes are in folders.


def leaders(etcd: EtcdProcess) -> dict[str, str]:
    """The leader of each node, if it is running."""
    views = asyncio.run(read_cluster(EtcdConfig((etcd.url,)), "shop"))
    return {
        node: view.record.leader
        for node, view in views.items()
        if view.record is not None
        and (address := view.alive.get(view.record.leader)) is not None
        and address.leading_epoch == view.record.epoch
    }


def in_sync(etcd: EtcdProcess) -> dict[str, frozenset[str]]:
    """The members in sync of each node."""
    views = asyncio.run(read_cluster(EtcdConfig((etcd.url,)), "shop"))
    return {
        node: frozenset(view.record.in_sync_members)
        for node, view in views.items()
        if view.record is not None
    }


@pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")
def test_each_machine_leads_another_node_and_takes_over_the_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(run_etcd())
        machines: dict[str, Machine] = {}
        for name in "ab":
            tcp, http = (
                stack.enter_context(reserved_ports(2)),
                stack.enter_context(reserved_ports(2)),
            )
            (tmp_path / name).mkdir()
            log_file = stack.enter_context((tmp_path / f"{name}.log").open("w+b"))
            flags = ["--cluster=shop", "--nodes=x,y", f"--etcd={etcd.url}", "--replicas=2"]
            machine = Machine(
                name,
                (tcp, http),
                tmp_path / name,
                [*flags, "--min-in-sync=1", "--https-address=", *FAST_TAKEOVER],
                log_file.fileno(),
            )
            stack.callback(machine.release)
            machine.start()
            machines[name] = machine
        wait_until(lambda: leaders(etcd) == {"x": "a", "y": "b"}, "one node per machine")
        both = frozenset("ab")
        wait_until(lambda: in_sync(etcd) == {"x": both, "y": both}, "members that can take over")

        machines["a"].terminate()
        wait_until(lambda: leaders(etcd) == {"x": "b", "y": "b"}, "the other machine leads both")
        machines["a"].start()
        wait_until(lambda: leaders(etcd) == {"x": "a", "y": "b"}, "the first machine leads again")
        for machine in machines.values():
            machine.terminate()
            machine.check_log()


def test_options_of_each_node() -> None:
    options = NsqdOptions(cluster="shop", nodes="x, y", data_path="/data", log_prefix="[nsqd] ")
    first, second = nodes_of(options)

    assert ("x", "/data/x", "0.0.0.0:4150", 0) == (
        first.options.node,
        first.options.data_path,
        first.options.tcp_address,
        first.preferred_rank,
    )
    assert ("y", "/data/y", "0.0.0.0:4250", 1) == (
        second.options.node,
        second.options.data_path,
        second.options.tcp_address,
        second.preferred_rank,
    )


@pytest.mark.parametrize("nodes", ["x,x", "x,,y", ","])
def test_invalid_names(nodes: str) -> None:
    with pytest.raises(ConfigError, match="--nodes must be different names"):
        nodes_of(NsqdOptions(cluster="shop", nodes=nodes))
