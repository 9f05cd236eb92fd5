"""Changes of a record in etcd by commands, while other processes change it, too."""

import asyncio

import pytest

from penstock.admin_api import replicated_nodes
from penstock.admin_api.replicated_nodes import ATTEMPTS, ReplicatedNodes
from penstock.common.errors import ReplicationError
from penstock.net.http_client.client import HttpClient
from penstock.replication.coordination import ClusterView, WriteResult
from penstock.replication.etcd import read_cluster, write_record
from penstock.replication.etcd_client import EtcdConfig
from penstock.replication.node_record import NodeRecord, add_member, create_record
from penstock.testing.etcd import has_etcd, run_etcd

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


async def read_record(config: EtcdConfig) -> tuple[NodeRecord, int]:
    view = (await read_cluster(config, "shop"))["n1"]
    assert view.record is not None
    return view.record, view.revision


def test_a_change_is_repeated_after_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process adds a member each time that the command has read the record."""
    added: list[str] = []
    conflicts = 2

    async def read_and_change(config: EtcdConfig, cluster: str) -> dict[str, ClusterView]:
        views = await read_cluster(config, cluster)
        if len(added) < conflicts:
            added.append(f"m{len(added)}")
            record, revision = await read_record(config)
            record = add_member(record, added[-1])
            await write_record(config, cluster, "n1", record, revision)
        return views

    async def run(config: EtcdConfig) -> None:
        nonlocal conflicts
        record = add_member(create_record("uuid", "a", "1"), "b")
        result = await write_record(config, "shop", "n1", record, 0)
        assert result is WriteResult.STORED
        monkeypatch.setattr(replicated_nodes, "read_cluster", read_and_change)
        http = HttpClient(connect_timeout_seconds=1.0, request_timeout_seconds=1.0)
        nodes = ReplicatedNodes(config, "shop", http)
        await nodes.move("n1", "b")
        changed, _ = await read_record(config)
        assert ("b", ("a", "b", "m0", "m1")) == (changed.preferred_leader, changed.members)

        conflicts = len(added) + ATTEMPTS
        with pytest.raises(ReplicationError, match="changes all the time"):
            await nodes.move("n1", "a")
        assert "b" == (await read_record(config))[0].preferred_leader

    with run_etcd() as etcd:
        asyncio.run(run(EtcdConfig((etcd.url,))))
