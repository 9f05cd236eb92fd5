"""The client of etcd: keys, leases and watches, with a real etcd and with broken responses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.common.errors import EtcdError
from penstock.replication.etcd_client import (
    EtcdClient,
    EtcdConfig,
    EtcdWatch,
    KeyEvent,
    LeaseExpiredError,
)
from penstock.testing.etcd import EtcdProcess, has_etcd, run_etcd

needs_etcd = pytest.mark.skipif(not has_etcd(), reason="needs etcd")

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADER = b'"header":{"cluster_id":"1","revision":"7"}'


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with run_etcd() as etcd:
        yield etcd


def play(url: str, scene: Callable[[EtcdClient], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        client = EtcdClient(EtcdConfig((url,), request_timeout_seconds=30))
        try:
            await scene(client)
        finally:
            client.close()

    uvloop.run(main())


async def receive(watch: EtcdWatch, count: int) -> list[KeyEvent]:
    """The next events, at least `count`."""
    events: list[KeyEvent] = []
    async with asyncio.timeout(60):
        while len(events) < count:
            events += await watch.receive(seconds=60)
    return events


@needs_etcd
class TestKeys:
    def test_swap_and_read(self, etcd: EtcdProcess) -> None:
        async def scene(client: EtcdClient) -> None:
            assert await client.swap("/keys/a", b"\x00\xff", expected_mod_revision=0)
            assert not await client.swap("/keys/a", b"other", expected_mod_revision=0)
            assert await client.swap("/keys/b", b"", expected_mod_revision=0)
            assert await client.swap("/keys0", b"not under the prefix", expected_mod_revision=0)
            found = await client.read_prefix("/keys/")
            assert [("/keys/a", b"\x00\xff"), ("/keys/b", b"")] == [
                (each.key, each.value) for each in found.kvs
            ]
            assert found.kvs[0].mod_revision < found.kvs[1].mod_revision < found.header.revision

            revision = found.kvs[0].mod_revision
            assert await client.swap("/keys/a", b"new", expected_mod_revision=revision)
            changed = await client.read_key("/keys/a")
            assert changed is not None
            assert b"new" == changed.value
            assert await client.read_key("/keys/c") is None

        play(etcd.url, scene)

    def test_a_slash_at_the_end_of_the_endpoint_is_ignored(self, etcd: EtcdProcess) -> None:
        async def scene(client: EtcdClient) -> None:
            assert [] == (await client.read_prefix("/nothing/")).kvs

        play(etcd.url + "/", scene)


@needs_etcd
class TestLeases:
    def test_a_key_goes_with_its_lease(self, etcd: EtcdProcess) -> None:
        async def scene(client: EtcdClient) -> None:
            lease = await client.grant_lease(600)
            assert await client.swap("/lease/a", b"x", expected_mod_revision=0, lease=lease)
            assert await client.keep_lease_alive(lease)
            found = await client.read_key("/lease/a")
            assert found is not None
            assert lease == found.lease
            await client.revoke_lease(lease)
            assert await client.read_key("/lease/a") is None

            assert not await client.keep_lease_alive(lease)
            with pytest.raises(LeaseExpiredError):
                await client.revoke_lease(lease)
            with pytest.raises(LeaseExpiredError):
                await client.swap("/lease/a", b"x", expected_mod_revision=0, lease=lease)

        play(etcd.url, scene)


@needs_etcd
class TestWatch:
    def test_changes_arrive_from_the_start_revision_on(self, etcd: EtcdProcess) -> None:
        async def scene(client: EtcdClient) -> None:
            assert await client.swap("/watch/old", b"0", expected_mod_revision=0)
            revision = (await client.read_prefix("/watch/")).header.revision
            lease = await client.grant_lease(600)
            assert await client.swap("/watch/a", b"1", expected_mod_revision=0, lease=lease)
            async with client.watch_prefix("/watch/", revision + 1) as watch:
                await client.revoke_lease(lease)
                events = await receive(watch, 2)

                assert [("PUT", "/watch/a", b"1"), ("DELETE", "/watch/a", b"")] == [
                    (each.type, each.kv.key, each.kv.value) for each in events
                ]
                assert [revision + 1, revision + 2] == [each.kv.mod_revision for each in events]
                assert [] == await watch.receive(seconds=0.05)

        play(etcd.url, scene)

    def test_compacted_revisions_are_an_error(self, etcd: EtcdProcess) -> None:
        async def scene(client: EtcdClient) -> None:
            for _ in range(2):
                found = await client.read_key("/compacted/a")
                revision = found.mod_revision if found else 0
                assert await client.swap("/compacted/a", b"", expected_mod_revision=revision)
            revision = (await client.read_prefix("/compacted/")).header.revision
            await asyncio.to_thread(etcd.call, "/v3/kv/compaction", revision=str(revision))
            async with client.watch_prefix("/compacted/", 1) as watch:
                with pytest.raises(EtcdError) as caught:
                    await receive(watch, 1)

            assert (
                f"etcd at {etcd.url} ended the watch: revisions before {revision} are compacted"
            ) == str(caught.value)

        play(etcd.url, scene)


@asynccontextmanager
async def scripted_watch(*chunks: bytes, is_ended: bool = False) -> AsyncIterator[EtcdWatch]:
    """A watch that gets these chunks; then the response ends, or the connection hangs."""
    answer = STREAM + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks)
    answer += b"0\r\n\r\n" if is_ended else b""
    async with scripted_server(answer, hangs=True) as server:
        client = EtcdClient(EtcdConfig((f"http://127.0.0.1:{server.port}",)))
        async with client.watch_prefix("/x/", 1) as watch:
            yield watch


class TestScriptedWatch:
    def test_a_response_may_arrive_in_pieces(self) -> None:
        line = b'{"result":{%b,"events":[{"kv":{"key":"YQ==","mod_revision":"7"}}]}}\n' % HEADER

        async def scene() -> None:
            async with scripted_watch(line[:30], line[30:] + line + line[:5]) as watch:
                events = await receive(watch, 2)

                assert [("a", 7), ("a", 7)] == [
                    (each.kv.key, each.kv.mod_revision) for each in events
                ]

        uvloop.run(scene())

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b'{"error":{"grpc_code":14,"message":"no leader"}}', "ended the watch: no leader"),
            (b'{"error":{"code":14,"message":"no leader"}}', "ended the watch: no leader"),
            (
                b'{"result":{%b,"canceled":true,"cancel_reason":"denied"}}' % HEADER,
                "ended the watch: denied",
            ),
            (b'{"result":{%b,"canceled":true}}' % HEADER, "ended the watch: no reason is given"),
            (b"{}", "ended the watch: the response is empty"),
            (b"<html>", "is not an etcd: unexpected response"),
            (b"[]", "is not an etcd: unexpected response"),
        ],
    )
    def test_an_error_ends_the_watch(self, line: bytes, reason: str) -> None:
        async def scene() -> None:
            async with scripted_watch(line + b"\n") as watch:
                await receive(watch, 1)

        with pytest.raises(EtcdError, match=reason):
            uvloop.run(scene())

    def test_the_end_of_the_response_is_an_error(self) -> None:
        async def scene() -> None:
            async with scripted_watch(is_ended=True) as watch:
                await receive(watch, 1)

        with pytest.raises(EtcdError, match=r"ended the watch$"):
            uvloop.run(scene())

    def test_a_rejected_watch_is_an_error(self) -> None:
        body = b'{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}'
        answer = b"HTTP/1.1 503 Unavailable\r\nContent-Length: %d\r\n\r\n" % len(body) + body

        async def scene() -> None:
            async with scripted_server(answer) as server:
                client = EtcdClient(EtcdConfig((f"http://127.0.0.1:{server.port}",)))
                async with client.watch_prefix("/x/", 1):
                    pass

        with pytest.raises(EtcdError, match="etcdserver: no leader"):
            uvloop.run(scene())
