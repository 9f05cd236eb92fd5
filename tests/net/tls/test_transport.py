"""TLS between the transport of a listener and its protocol."""

import asyncio
import gc
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvloop
from tests.net.tls.certificates import Authority, Identity
from tests.net.tls.servers import echo_server, serve

from penstock.common.errors import TlsError
from penstock.net.tls import ReloadableContext, TlsLayer, client_context, connection, server_context

NOISE = random.Random(1).randbytes(3_000_000)

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Recorder(asyncio.Protocol):
    """Records its events, and runs a test's action for each piece of data."""

    def __init__(self, on_data: Callable[["Recorder", bytes], None]) -> None:
        self.received = bytearray()
        self.events: list[str] = []
        self.paused = asyncio.Event()
        self.gone = asyncio.Event()
        self.transport: asyncio.Transport
        self._on_data = on_data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._on_data(self, data)

    def eof_received(self) -> None:
        self.events.append("eof")

    def pause_writing(self) -> None:
        self.events.append("pause")
        self.paused.set()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.events.append("resume")
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.gone.set()


@pytest.fixture
def context(server: Identity) -> ReloadableContext:
    return ReloadableContext(lambda: server_context(cert=server.cert, key=server.key))


@pytest.fixture
def client(authority: Authority) -> ssl.SSLContext:
    return client_context(root_ca=authority.root_ca)


def run(scenario: Awaitable[None]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario, 60)

    uvloop.run(main())


async def connect(port: int, client: ssl.SSLContext) -> Connected:
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=client, server_hostname="localhost", limit=len(NOISE)
    )


def test_an_asyncio_streams_server_works_over_tls(
    context: ReloadableContext, client: ssl.SSLContext
) -> None:
    async def scenario() -> None:
        async with echo_server(context) as port:
            reader, writer = await connect(port, client)
            for line in (b"hello\n", NOISE.replace(b"\n", b"") + b"\n", b"bye\n"):
                writer.write(line)
                assert line == await reader.readuntil(b"\n")
            writer.close()

    run(scenario())


def test_a_client_that_does_not_read_pauses_the_protocol(
    context: ReloadableContext, client: ssl.SSLContext
) -> None:
    async def scenario() -> None:
        echo = Recorder(lambda self, data: self.transport.write(data))
        async with serve(context, lambda: echo) as port:
            reader, writer = await connect(port, client)
            for _ in range(10):
                writer.write(NOISE)
            await echo.paused.wait()
            assert len(echo.received) < 10 * len(NOISE)
            for _ in range(10):
                assert NOISE == await reader.readexactly(len(NOISE))
            writer.close()
            await echo.gone.wait()

        assert ["made", "eof", "lost"] == [
            each for each in echo.events if each not in {"pause", "resume"}
        ]

    run(scenario())


def test_a_protocol_that_pauses_reading_loses_no_data(
    context: ReloadableContext, client: ssl.SSLContext
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def pause(recorder: Recorder, _data: bytes) -> None:
            assert recorder.transport.is_reading(), "data came while it was paused"
            recorder.transport.pause_reading()
            loop.call_later(0.001, recorder.transport.resume_reading)

        recorder = Recorder(pause)
        async with serve(context, lambda: recorder) as port:
            _, writer = await connect(port, client)
            writer.write(NOISE)
            writer.close()
            await recorder.gone.wait()

        assert NOISE == recorder.received
        assert ["made", "eof", "lost"] == recorder.events

    run(scenario())


def test_a_refused_handshake_is_reported_to_both_sides(
    context: ReloadableContext, client: ssl.SSLContext
) -> None:
    async def scenario() -> None:
        context.current.minimum_version = ssl.TLSVersion.TLSv1_3
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        failures: list[tuple[str, str]] = []

        def note(address: str, failure: TlsError) -> None:
            failures.append((address.partition(":")[0], str(failure)))

        async with serve(context, lambda: pytest.fail("it got through"), note) as port:
            with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
                await connect(port, client)

        assert [("127.0.0.1", "tls: unsupported protocol")] == failures

    run(scenario())


def test_a_later_tls_error_aborts_the_connection_and_is_reported(
    context: ReloadableContext, authority: Authority
) -> None:
    async def scenario() -> None:
        failures: list[str] = []
        recorder = Recorder(lambda _self, _data: None)
        layer = TlsLayer(
            client_context(root_ca=authority.root_ca),
            server_side=False,
            server_hostname="localhost",
        )
        async with serve(
            context, lambda: recorder, lambda _address, failure: failures.append(str(failure))
        ) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while layer.is_handshaking:
                writer.write(layer.pending())
                layer.receive(await reader.read(65_536))
                layer.read()
            writer.write(layer.pending() + b"\x17\x03\x03\x00\x20" + NOISE[:32])
            layer.receive(await reader.read())
            await recorder.gone.wait()
            writer.close()

        assert ["made", "lost"] == recorder.events
        assert ["tls: decryption failed or bad record mac"] == failures
        with pytest.raises(TlsError, match="alert bad record mac"):
            layer.read()

    run(scenario())


def test_a_handshake_that_takes_too_long_is_aborted(
    context: ReloadableContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.01)
        failures: list[str] = []
        async with serve(
            context,
            lambda: pytest.fail("it got through"),
            lambda _address, failure: failures.append(str(failure)),
        ) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with suppress(ConnectionResetError):  # either EOF or a reset
                assert b"" == await reader.read()
            writer.close()

        assert ["tls: the handshake took too long"] == failures

    run(scenario())


def test_a_connection_without_data_is_not_reported(context: ReloadableContext) -> None:
    async def scenario() -> None:
        failures: list[str] = []
        async with serve(
            context,
            lambda: pytest.fail("it got through"),
            lambda _address, failure: failures.append(str(failure)),
        ) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write_eof()
            assert b"" == await reader.read()
            writer.close()

        assert [] == failures

    run(scenario())


def test_a_closed_connection_is_freed_without_the_garbage_collector(
    context: ReloadableContext, client: ssl.SSLContext
) -> None:
    async def scenario() -> None:
        recorder = Recorder(lambda self, data: self.transport.write(data))
        async with serve(context, lambda: recorder) as port:
            reader, writer = await connect(port, client)
            writer.write(b"hello")
            assert b"hello" == await reader.readexactly(5)
            assert 1 == living_layers()
            writer.close()
            await recorder.gone.wait()

            assert 0 == living_layers()

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


def living_layers() -> int:
    return sum(isinstance(each, TlsLayer) for each in gc.get_objects())
