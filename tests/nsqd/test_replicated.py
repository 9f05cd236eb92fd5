"""A member of a replicated node that stops."""

import asyncio
from pathlib import Path

import pytest
from tests.replication.test_leader import ALONE, address_of

from penstock.common.logs import Logger, LogLevel
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.replicated import ReplicatedNsqd
from penstock.replication.coordination import ClusterView
from penstock.replication.member import Role
from penstock.storage import RealFiles
from penstock.storage.data_dir import verify_data_path


def test_member_that_is_stopping_does_not_start_to_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members are stopped at once: the leader has gone while this one still stops. Otherwise
    the process would end while it leads, and the copy would count as incomplete after a reboot."""
    options = NsqdOptions(
        data_path=str(tmp_path),
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        cluster="shop",
        node="n",
        member="a",
        etcd_addresses=("http://127.0.0.1:1",),
    )

    async def run() -> None:
        is_stopping, may_stop = asyncio.Event(), asyncio.Event()
        member = ReplicatedNsqd(options, Logger("", LogLevel.FATAL), lambda: None)
        await member.start()
        stop_http = member._stop_http

        async def stop_http_slowly() -> None:
            monkeypatch.setattr(member, "_stop_http", stop_http)
            is_stopping.set()
            await may_stop.wait()
            await stop_http()

        monkeypatch.setattr(member, "_stop_http", stop_http_slowly)
        stopping = asyncio.create_task(member.stop())
        await is_stopping.wait()
        member._member.role = Role.LEADING
        member.lead(ClusterView(ALONE, 1, {"a": address_of("a")}))
        pending = tuple(member._tasks)
        if pending:
            await asyncio.wait(pending)
        may_stop.set()
        await stopping
        assert member.nsqd is None

    asyncio.run(asyncio.wait_for(run(), 60))

    found = verify_data_path(str(tmp_path), RealFiles())
    assert found is None or not found.is_open
