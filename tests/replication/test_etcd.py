"""The coordinator of etcd, with a real etcd that is killed, suspended and replaced."""

import asyncio
import base64
import http.server
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import uvloop
from tests.replication.coordination_services import (
    CLUSTER,
    EtcdService,
    RecordingListener,
    make_address,
    make_record,
)

from penstock.common.errors import EtcdError, ReplicationError
from penstock.common.logs import Logger
from penstock.replication.coordination import ClusterView, WriteResult
from penstock.replication.etcd import EtcdCoordinator, read_cluster, write_record
from penstock.replication.etcd_client import EtcdClient, EtcdConfig
from penstock.replication.node_record import FORMAT, encode_record
from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import EtcdProcess, EtcdTls, has_etcd, run_etcd

needs_etcd = pytest.mark.skipif(not has_etcd(), reason="needs etcd")

PASSWORD = "secret"


@pytest.fixture
def etcd() -> Iterator[EtcdProcess]:
    """For tests that stop it or change its settings."""
    with run_etcd() as etcd:
        yield etcd


@pytest.fixture(scope="module")
def shared_etcd() -> Iterator[EtcdProcess]:
    with run_etcd() as etcd:
        yield etcd


def play(service: EtcdService, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scene, and check that no task is left."""

    async def main() -> None:
        try:
            await scene()
        finally:
            await service.close_all()
        assert {asyncio.current_task()} == asyncio.all_tasks()

    uvloop.run(main())


def put(etcd: EtcdProcess, key: str, value: bytes) -> None:
    encoded = [base64.b64encode(each).decode() for each in (key.encode(), value)]
    etcd.call("/v3/kv/put", key=encoded[0], value=encoded[1])


async def lease_of(service: EtcdService) -> int:
    """The lease of the entry of member a."""
    client = EtcdClient(service.config)
    found = await client.read_key(f"{service.prefix}alive/a")
    client.close()
    assert found is not None
    return found.lease


@contextmanager
def http_server(status: int, body: bytes, version: bytes = b"") -> Iterator[str]:
    """An HTTP server that is not an etcd; /version returns `version`, if given."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status, body)

        def do_GET(self) -> None:
            self.answer(200 if version else 404, version)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


ANNOUNCE_FOR_EVER = """
import asyncio, sys
from tests.replication.coordination_services import EtcdService, make_address
async def main():
    service = EtcdService(sys.argv[1], node=sys.argv[2], lease_seconds=2)
    service.coordinator("a").announce(make_address("a"))
    await asyncio.Event().wait()
asyncio.run(main())
"""


@needs_etcd
class TestEntries:
    def test_the_entry_of_a_killed_process_expires(self, shared_etcd: EtcdProcess) -> None:
        service = EtcdService(shared_etcd.url)

        async def scene() -> None:
            _, seen = await service.start("b")
            process = subprocess.Popen(  # noqa: ASYNC220 (returns at once)
                [sys.executable, "-c", ANNOUNCE_FOR_EVER, shared_etcd.url, service.node],
                cwd=Path(__file__).parents[2],
            )
            try:
                await service.until(lambda: {"a"} == seen.alive, "the entry")
            finally:
                process.kill()
                process.wait()
            await service.until(lambda: not seen.alive, "the end of the entry")

        play(service, scene)

    def test_the_lease_is_kept_alive(self, shared_etcd: EtcdProcess) -> None:
        service = EtcdService(shared_etcd.url)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            lease = str(await lease_of(service))
            remaining: list[int] = []

            def is_renewed() -> bool:
                answer = shared_etcd.call("/v3/lease/timetolive", ID=lease)
                remaining.append(int(answer["TTL"]))
                return remaining[-1] > min(remaining)

            await service.until(is_renewed, "the remaining time to grow")

        play(service, scene)

    def test_an_entry_that_was_deleted_is_stored_again(self, shared_etcd: EtcdProcess) -> None:
        service = EtcdService(shared_etcd.url)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            key = base64.b64encode(f"{service.prefix}alive/a".encode()).decode()
            shared_etcd.call("/v3/kv/deleterange", key=key)

            await service.until(
                lambda: [set(), {"a"}] == [set(view.alive) for view in seen.views[-2:]],
                "the entry to disappear and return",
            )

        play(service, scene)

    def test_an_entry_is_stored_again_after_its_lease_was_revoked(
        self, shared_etcd: EtcdProcess
    ) -> None:
        service = EtcdService(shared_etcd.url)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            shared_etcd.call("/v3/lease/revoke", ID=str(await lease_of(service)))

            await service.until(
                lambda: [set(), {"a"}] == [set(view.alive) for view in seen.views[-2:]],
                "the entry to disappear and return",
            )

        play(service, scene)

    def test_a_member_that_runs_twice_is_logged(self, shared_etcd: EtcdProcess) -> None:
        service = EtcdService(shared_etcd.url)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a", "first"))
            await service.until(lambda: seen.alive, "the entry")
            service.coordinator("a").announce(make_address("a", "second"))
            text = (
                "WARNING: member a is already running, at a.example:4150; "
                "waiting until it has stopped"
            )

            await service.until(lambda: text in "".join(service.log_lines), "the warning")

        play(service, scene)

    def test_an_entry_that_cannot_be_decoded_is_ignored(self, shared_etcd: EtcdProcess) -> None:
        service = EtcdService(shared_etcd.url)
        put(shared_etcd, f"{service.prefix}alive/x", b"not JSON")

        async def scene() -> None:
            _, seen = await service.start("a")

            assert [ClusterView(None, 0, {})] == seen.views

        play(service, scene)


@needs_etcd
@pytest.mark.crash
class TestFailures:
    def test_views_continue_after_etcd_was_killed_and_restarted(self, etcd: EtcdProcess) -> None:
        service = EtcdService(etcd.url, lease_seconds=3)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.write(first, make_record(), 0)
            await service.until(lambda: seen.alive and seen.last.record, "record and entry")
            before = seen.last
            etcd.kill()
            await service.until(lambda: [True, False] == seen.connections, "the loss")
            assert WriteResult.UNKNOWN == await service.write(first, make_record(), 0)

            await asyncio.to_thread(etcd.start)
            await service.until(lambda: [True, False, True] == seen.connections[:3], "recovery")
            changed = msgspec.structs.replace(make_record(), epoch=2)
            result = await service.write(first, changed, before.revision)
            assert WriteResult.STORED == result
            await service.until(
                lambda: seen.last.record == changed and seen.alive == {"a"}, "the last view"
            )
            log = "".join(service.log_lines)
            assert f"ERROR: etcd: cannot reach etcd at {etcd.url}: " in log
            assert f"INFO: etcd: connected to {etcd.url}" in log

        play(service, scene)

    def test_a_lost_entry_is_stored_again_after_an_outage(self, etcd: EtcdProcess) -> None:
        service = EtcdService(etcd.url)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            lease = str(await lease_of(service))
            etcd.kill()
            await service.until(lambda: False in seen.connections, "the loss")
            # Before or after the member has connected again: both must end with an entry.
            await asyncio.to_thread(etcd.start)
            await asyncio.to_thread(etcd.call, "/v3/lease/revoke", ID=lease)
            await service.until(
                lambda: seen.connections[-1] and seen.alive == {"a"}, "the entry to return"
            )

        play(service, scene)

    def test_an_etcd_that_does_not_answer_is_noticed(self, etcd: EtcdProcess) -> None:
        service = EtcdService(etcd.url, lease_seconds=3, request_timeout_seconds=1)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            etcd.suspend()
            await service.until(lambda: False in seen.connections, "the loss")
            assert WriteResult.UNKNOWN == await service.write(first, make_record(), 5000)
            etcd.resume()
            await service.until(
                lambda: seen.connections[-1] and seen.alive == {"a"}, "the entry to return"
            )

        play(service, scene)

    def test_close_does_not_wait_for_an_etcd_that_does_not_answer(self, etcd: EtcdProcess) -> None:
        service = EtcdService(etcd.url)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            etcd.suspend()
            async with asyncio.timeout(service.config.request_timeout_seconds):
                await service.close(first)
            assert "cannot delete the entry of this member: timed out" in service.log_lines[-1]

        play(service, scene)

    def test_the_next_endpoint_is_used(self, etcd: EtcdProcess) -> None:
        with run_etcd_nowhere() as nowhere:
            service = EtcdService(nowhere, etcd.url)

            async def scene() -> None:
                _, seen = await service.start("a")

                assert [False, True] == seen.connections
                assert f"cannot reach etcd at {nowhere}: Connection refused" in "".join(
                    service.log_lines
                )

            play(service, scene)

    def test_an_unreachable_etcd_is_reported_once(self) -> None:
        with run_etcd_nowhere() as nowhere:
            service = EtcdService(nowhere)

            async def scene() -> None:
                coordinator, seen = service.coordinator("a"), RecordingListener()
                coordinator.start(seen)
                coordinator.announce(make_address("a"))
                await service.until(lambda: seen.connections, "the failure")
                await asyncio.sleep(1)  # several attempts
                assert ([False], []) == (seen.connections, seen.errors)
                assert 1 == len(service.log_lines)

            play(service, scene)

    def test_a_compaction_during_an_outage_loses_no_view(self, etcd: EtcdProcess) -> None:
        service = EtcdService(etcd.url, lease_seconds=3, request_timeout_seconds=1)

        async def scene() -> None:
            writer, seen = await service.start("a")
            await service.write(writer, make_record(), 0)
            await service.until(lambda: seen.last.record, "the record")
            etcd.kill()
            await service.until(lambda: False in seen.connections, "the loss")
            await asyncio.to_thread(etcd.start)
            changed = msgspec.structs.replace(make_record(), epoch=2)
            for epoch in range(2, 10):
                changed = msgspec.structs.replace(make_record(), epoch=epoch)
                await asyncio.to_thread(
                    put, etcd, f"{service.prefix}record", encode_record(changed)
                )
            answer = await asyncio.to_thread(etcd.call, "/v3/kv/range", key="eA==")
            revision = answer["header"]["revision"]
            await asyncio.to_thread(etcd.call, "/v3/kv/compaction", revision=revision)
            await service.until(
                lambda: seen.connections[-1] and seen.last.record == changed, "the last record"
            )

        play(service, scene)

    def test_an_etcd_without_its_data_is_an_error(self, etcd: EtcdProcess) -> None:
        service = EtcdService(etcd.url, lease_seconds=3, request_timeout_seconds=1)

        async def scene() -> None:
            first, seen = await service.start("a")
            await service.write(first, make_record(), 0)
            await service.until(lambda: seen.last.record, "the record")
            views, revision = list(seen.views), seen.last.revision
            etcd.kill()
            etcd.delete_data()
            await asyncio.to_thread(etcd.start)
            await service.until(lambda: seen.errors, "the error")
            assert str(seen.errors[0]) in (
                f"etcd at {etcd.url} has lost data: its revision is 1, and was {revision}",
                f"etcd at {etcd.url} belongs to another etcd cluster than before",
            )
            assert views == seen.views

        play(service, scene)


class FreezingProxy:
    """Forwards connections to etcd until they are frozen: then they stay open, and nothing is
    forwarded, as if a router had forgotten them."""

    def __init__(self, etcd: EtcdProcess) -> None:
        self.watches = 0
        self._etcd_port = int(etcd.url.rpartition(":")[2])
        self._frozen_watches = asyncio.Event()
        self._frozen_others = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def freeze_watches(self) -> None:
        """Freeze the connections that carry a watch now, but no later one."""
        self._frozen_watches.set()
        self._frozen_watches = asyncio.Event()

    def freeze_for_ever(self) -> None:
        """Freeze all connections, also later ones."""
        self._frozen_watches.set()
        self._frozen_others.set()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        etcd_reader, etcd_writer = await asyncio.open_connection("127.0.0.1", self._etcd_port)
        first = await reader.read(65536)
        etcd_writer.write(first)
        is_watch = first.startswith(b"POST /v3/watch")
        self.watches += is_watch
        frozen = self._frozen_watches if is_watch else self._frozen_others
        for source, sink in ((reader, etcd_writer), (etcd_reader, writer)):
            task = asyncio.ensure_future(self._forward(source, sink, frozen))
            self._tasks.add(task)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, frozen: asyncio.Event
    ) -> None:
        try:
            while data := await source.read(65536):
                if not frozen.is_set():
                    sink.write(data)
        except ConnectionError:
            pass
        finally:
            sink.close()


@needs_etcd
def test_a_watch_on_a_dead_connection_is_noticed(shared_etcd: EtcdProcess) -> None:
    async def main() -> None:
        proxy = FreezingProxy(shared_etcd)
        service = EtcdService(await proxy.open(), lease_seconds=2)
        writer = EtcdService(shared_etcd.url, node=service.node)
        try:
            _, seen = await service.start("a")
            first, _ = await writer.start("b")
            proxy.freeze_watches()
            assert WriteResult.STORED == await writer.write(first, make_record(), 0)
            await service.until(lambda: seen.last.record == make_record(), "the record")

            assert [True, False, True] == seen.connections[:3]
            assert proxy.watches >= 2
            assert "the watch misses changes" in "".join(service.log_lines)
        finally:
            await service.close_all()
            await writer.close_all()
            await proxy.close()

    uvloop.run(main())


@needs_etcd
def test_a_server_that_hangs_is_replaced_by_the_next(shared_etcd: EtcdProcess) -> None:
    async def main() -> None:
        proxy = FreezingProxy(shared_etcd)
        service = EtcdService(
            await proxy.open(), shared_etcd.url, lease_seconds=3, request_timeout_seconds=1
        )
        try:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            proxy.freeze_for_ever()
            await service.until(lambda: False in seen.connections, "the loss")
            await service.until(
                lambda: seen.connections[-1] and seen.alive == {"a"}, "the other server"
            )
            leaving = make_address("a", leading_epoch=7)
            first.announce(leaving)
            await service.until(lambda: seen.last.alive == {"a": leaving}, "the changed entry")
        finally:
            await service.close_all()
            await proxy.close()

    uvloop.run(main())


@needs_etcd
class TestTls:
    def test_https(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        tls = EtcdTls(tmp_path / "server.pem", tmp_path / "server.pem", trusting)
        with run_etcd(tls) as etcd:
            service = EtcdService(etcd.url, tls=trusting)

            async def scene() -> None:
                first, seen = await service.start("a")
                first.announce(make_address("a"))
                assert WriteResult.STORED == await service.write(first, make_record(), 0)
                await service.until(lambda: seen.alive and seen.last.record, "record and entry")
                distrusting = EtcdConfig((etcd.url,), tls=ssl.create_default_context())
                with pytest.raises(EtcdError, match="certificate verify failed"):
                    await read_cluster(distrusting, CLUSTER)

            play(service, scene)


@contextmanager
def run_etcd_nowhere() -> Iterator[str]:
    """A URL at which connections are refused."""
    with reserved_address() as address:
        yield f"http://{address}"


@needs_etcd
class TestRecords:
    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (b"not JSON", "etcd contains an invalid record: JSON is malformed"),
            (b'{"epoch": 1}', "etcd contains an invalid record: Object missing required field"),
            (
                b'{"format": %d}' % (FORMAT + 1),
                f"the cluster has format {FORMAT + 1}, written by a newer version",
            ),
        ],
    )
    def test_an_invalid_record_is_an_error(
        self, shared_etcd: EtcdProcess, value: bytes, reason: str
    ) -> None:
        service = EtcdService(shared_etcd.url)

        async def scene() -> None:
            _, seen = await service.start("a")
            put(shared_etcd, f"{service.prefix}record", value)
            await service.until(lambda: seen.errors, "the error")
            assert str(seen.errors[0]).startswith(
                f"node {service.node} of cluster {CLUSTER}: {reason}"
            )
            with pytest.raises(ReplicationError, match=reason):
                await read_cluster(service.config, CLUSTER)

            put(shared_etcd, f"{service.prefix}record", encode_record(make_record()))
            await service.until(lambda: seen.last.record == make_record(), "a valid record")
            assert (1, [True]) == (len(seen.errors), seen.connections)

        play(service, scene)

    def test_commands_read_and_write_all_nodes(self, shared_etcd: EtcdProcess) -> None:
        with run_etcd_nowhere() as nowhere:
            config = EtcdConfig((nowhere, shared_etcd.url))
            cluster = "for-commands"

            async def scene() -> None:
                assert {} == await read_cluster(config, cluster)
                for node in ("one", "two"):
                    for expected in (WriteResult.STORED, WriteResult.CONFLICT):
                        result = await write_record(config, cluster, node, make_record(), 0)
                        assert expected is result
                put(
                    shared_etcd,
                    f"/penstock/{cluster}/two/alive/b",
                    msgspec.json.encode(make_address("b")),
                )
                nodes = await read_cluster(config, cluster)

                assert ["one", "two"] == list(nodes)
                assert make_record() == nodes["one"].record == nodes["two"].record
                assert 0 < nodes["one"].revision < nodes["two"].revision
                assert ({}, {"b": make_address("b")}) == (nodes["one"].alive, nodes["two"].alive)

            uvloop.run(scene())


class TestWrongServers:
    def test_the_error_names_each_unreachable_endpoint(self) -> None:
        with run_etcd_nowhere() as one, run_etcd_nowhere() as two:
            with pytest.raises(EtcdError) as caught:
                uvloop.run(read_cluster(EtcdConfig((one, two)), CLUSTER))

            assert (
                f"cannot reach etcd at {one}: Connection refused; "
                f"cannot reach etcd at {two}: Connection refused"
            ) == str(caught.value)

    @pytest.mark.parametrize(
        ("status", "body", "reason"),
        [
            (501, b"<html>", "it answers with HTTP 501"),
            (404, b"", "it answers with HTTP 404"),
            (200, b"<html>", "unexpected response: JSON is malformed"),
            (200, b"{}", "unexpected response: Object missing required field `header`"),
        ],
    )
    def test_another_http_server_is_an_error(self, status: int, body: bytes, reason: str) -> None:
        with http_server(status, body) as url:
            with pytest.raises(EtcdError) as caught:
                uvloop.run(read_cluster(EtcdConfig((url,)), CLUSTER))

            assert str(caught.value).startswith(f"{url} is not an etcd: {reason}")

    def test_an_etcd_without_the_gateway_is_an_error(self) -> None:
        version = b'{"etcdserver":"3.2.26","etcdcluster":"3.2.0"}'
        with http_server(404, b"404 page not found\n", version) as url:
            with pytest.raises(EtcdError) as caught:
                uvloop.run(read_cluster(EtcdConfig((url,)), CLUSTER))

            assert (
                f"etcd 3.2.26 at {url} has no JSON gateway under /v3: use etcd 3.4 or later, "
                "with the gateway enabled"
            ) == str(caught.value)

    def test_the_coordinator_keeps_trying(self) -> None:
        with http_server(404, b"") as url:
            service = EtcdService(url)

            async def scene() -> None:
                coordinator, seen = service.coordinator("a"), RecordingListener()
                coordinator.start(seen)
                await service.until(lambda: seen.connections, "the failure")
                assert ([False], []) == (seen.connections, seen.errors)
                assert f"{url} is not an etcd" in service.log_lines[0]

            play(service, scene)


@needs_etcd
class TestAuthentication:
    def test_user_and_password(self, etcd: EtcdProcess) -> None:
        etcd.enable_authentication(PASSWORD)
        service = EtcdService(etcd.url, user="root", password=PASSWORD)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            assert WriteResult.STORED == await service.write(first, make_record(), 0)
            await service.until(lambda: seen.alive and seen.last.record, "record and entry")

            assert [] == seen.errors
            assert {service.node} == set(await read_cluster(service.config, CLUSTER))

        play(service, scene)

    def test_a_token_that_etcd_has_forgotten_is_replaced(self, etcd: EtcdProcess) -> None:
        etcd.enable_authentication(PASSWORD)
        service = EtcdService(etcd.url, user="root", password=PASSWORD, lease_seconds=3)

        async def scene() -> None:
            first, seen = await service.start("a")
            first.announce(make_address("a"))
            await service.until(lambda: seen.alive, "the entry")
            etcd.kill()
            await service.until(lambda: False in seen.connections, "the loss")
            await asyncio.to_thread(etcd.start)
            await service.until(
                lambda: seen.connections[-1] and seen.alive == {"a"}, "the entry to return"
            )
            assert WriteResult.STORED == await service.write(first, make_record(), 0)
            assert [] == seen.errors

        play(service, scene)

    @pytest.mark.parametrize(
        ("user", "password", "reason"),
        [
            ("", "", "requires a user and a password"),
            ("root", "wrong", "rejects the user 'root' or the password"),
            ("nobody", PASSWORD, "rejects the user 'nobody' or the password"),
            ("guest", PASSWORD, "denies the user 'guest' the access to /penstock/shop/"),
        ],
    )
    def test_rejections_are_errors(
        self, etcd: EtcdProcess, user: str, password: str, reason: str
    ) -> None:
        etcd.call("/v3/auth/user/add", name="guest", password=PASSWORD)
        etcd.enable_authentication(PASSWORD)
        service = EtcdService(etcd.url, user=user, password=password)

        async def scene() -> None:
            coordinator, seen = service.coordinator("a"), RecordingListener()
            coordinator.start(seen)
            await service.until(lambda: seen.errors, "the error")
            assert str(seen.errors[0]).startswith(f"etcd at {etcd.url} {reason}")
            assert ([False], []) == (seen.connections, seen.views)
            assert WriteResult.UNKNOWN == await service.write(coordinator, make_record(), 0)
            assert all(reason in str(error) for error in seen.errors)
            assert len(seen.errors) == len({str(error) for error in seen.errors})
            with pytest.raises(EtcdError, match=reason):
                await read_cluster(service.config, CLUSTER)
            with pytest.raises(EtcdError, match=reason):
                await write_record(service.config, CLUSTER, "n", make_record(), 0)

        play(service, scene)

    def test_a_user_is_ignored_if_authentication_is_disabled(
        self, shared_etcd: EtcdProcess
    ) -> None:
        config = EtcdConfig((shared_etcd.url,), "root", "whatever")

        assert {} == uvloop.run(read_cluster(config, "disabled"))

    def test_authentication_may_be_enabled_later(self, etcd: EtcdProcess) -> None:
        service = EtcdService(etcd.url, user="root", password=PASSWORD)

        async def scene() -> None:
            first, _ = await service.start("a")
            await asyncio.to_thread(etcd.enable_authentication, PASSWORD)
            assert WriteResult.STORED == await service.write(first, make_record(), 0)

        play(service, scene)


class TestConfiguration:
    @pytest.mark.parametrize(
        ("endpoint", "reason"),
        [
            ("127.0.0.1:2379", "not an http:// or https:// URL"),
            ("ftp://host:2379", "not an http:// or https:// URL"),
            ("http://host:2379/v3", "only host and port are allowed"),
            ("http://user:secret@host:2379", "give user and password apart"),
        ],
    )
    def test_an_invalid_endpoint_is_an_error(self, endpoint: str, reason: str) -> None:
        with pytest.raises(ReplicationError, match=reason) as caught:
            EtcdConfig((endpoint,))

        assert "secret" not in str(caught.value)

    def test_an_endpoint_is_required(self) -> None:
        with pytest.raises(ReplicationError, match="no endpoint"):
            EtcdConfig(())

    @pytest.mark.parametrize("name", ["", "a/b", "a b", "x#ephemeral", "x" * 65, "é"])
    @pytest.mark.parametrize("what", ["cluster", "node", "member"])
    def test_an_invalid_name_is_an_error(self, what: str, name: str) -> None:
        given = {"cluster": "c", "node": "n", "member": "m", what: name}
        config = EtcdConfig(("http://127.0.0.1:1",))

        with pytest.raises(ReplicationError, match=f"invalid name of a {what}: "):
            EtcdCoordinator(
                config,
                cluster=given["cluster"],
                node=given["node"],
                member=given["member"],
                log=Logger("[test] "),
            )

    def test_the_password_is_not_shown(self) -> None:
        config = EtcdConfig(("http://127.0.0.1:1",), "root", PASSWORD)

        assert PASSWORD not in repr(config)
