"""Layers below a connection: data through them, and failed handshakes."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.net.tls.certificates import Authority

from penstock.common.errors import CorruptStreamError, TlsError
from penstock.net.tls import ReloadableContext, TlsLayer, client_context, server_context
from penstock.nsqd import upgraded_transport
from penstock.nsqd.upgraded_transport import UpgradedTransport
from penstock.protocol.compression import Deflate, LayerStack, Snappy


class Transport:
    """Records written data, or passes it to a function."""

    def __init__(self) -> None:
        self.written = b""
        self.on_write: Callable[[bytes], None] = self.keep

    def keep(self, data: bytes) -> None:
        self.written += data

    def write(self, data: bytes) -> None:
        self.on_write(data)


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def under_test(transport: Transport) -> UpgradedTransport:
    return layers_on(transport)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ReloadableContext:
    ours = authority.issue("server")
    return ReloadableContext(lambda: server_context(cert=ours.cert, key=ours.key))


def layers_on(transport: Transport) -> UpgradedTransport:
    bare: Any = transport
    return UpgradedTransport(cast("asyncio.Transport", bare))


class TestCompression:
    def test_data_received_before_the_layer_starts_is_not_lost(
        self, under_test: UpgradedTransport, transport: Transport
    ) -> None:
        peer = Deflate()
        under_test.compress(Deflate(), peer.encode(b"ahead"))
        under_test.receive(peer.encode(b" of time"))

        assert b"ahead of time" == under_test.read() + under_test.read()
        under_test.write(b"answer")
        peer.receive(transport.written)
        assert b"answer" == peer.read()

    def test_an_unreadable_stream_raises_for_the_caller(
        self, under_test: UpgradedTransport
    ) -> None:
        under_test.compress(Snappy(), b"not snappy")

        with pytest.raises(CorruptStreamError):
            under_test.read()

    def test_without_tls_there_is_no_close_notify(
        self, under_test: UpgradedTransport, transport: Transport
    ) -> None:
        under_test.compress(Deflate(), b"")
        under_test.close_tls()

        assert b"" == transport.written
        assert under_test.tls is None
        assert not under_test.has_ended
        assert not under_test.is_handshaking


class TestTls:
    def test_tls_handshake_data_and_close_notify(
        self,
        under_test: UpgradedTransport,
        transport: Transport,
        authority: Authority,
        context: ReloadableContext,
    ) -> None:
        peer = TlsLayer(
            client_context(root_ca=authority.root_ca),
            server_side=False,
            server_hostname="127.0.0.1",
        )

        def answer(data: bytes) -> None:
            peer.receive(data)
            peer.do_handshake()
            if pending := peer.pending():
                under_test.receive(pending)

        transport.on_write = answer
        asyncio.run(under_test.start_tls(context, peer.pending()))

        assert under_test.tls is not None
        assert "TLS1.3" == under_test.tls.version
        transport.on_write = peer.receive
        under_test.compress(Deflate(), b"")
        theirs = Deflate()
        under_test.receive(peer.encode(theirs.encode(b"question")))
        assert b"question" == under_test.read()
        under_test.write(b"answer")
        theirs.receive(peer.read())
        assert b"answer" == theirs.read()

        under_test.close_tls()
        assert b"" == peer.read()
        assert peer.has_ended
        under_test.receive(peer.close())
        assert b"" == under_test.read()
        assert under_test.has_ended

    def test_a_handshake_timeout_leaves_the_transport_without_layers(
        self,
        under_test: UpgradedTransport,
        transport: Transport,
        context: ReloadableContext,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(upgraded_transport, "HANDSHAKE_SECONDS", 0.01)

        with pytest.raises(TlsError, match="i/o timeout"):
            asyncio.run(under_test.start_tls(context, b""))
        under_test.write(b"in clear")
        assert b"in clear" == transport.written

    def test_a_failed_handshake_sends_an_alert_and_leaves_the_transport_without_layers(
        self, under_test: UpgradedTransport, transport: Transport, context: ReloadableContext
    ) -> None:
        with pytest.raises(TlsError, match="unexpected message"):
            asyncio.run(under_test.start_tls(context, b"\x16\x03\x01\x00\x05hello"))
        under_test.write(b"in clear")

        assert transport.written.startswith(b"\x15\x03")
        assert transport.written.endswith(b"in clear")
        assert not under_test.is_handshaking


class TestStack:
    def test_the_last_layer_is_next_to_the_protocol(self) -> None:
        ours, theirs = LayerStack(), LayerStack()
        for stack in (ours, theirs):
            stack.push(Deflate())
            stack.push(Snappy())

        theirs.receive(ours.encode(b"x" * 100))
        assert b"x" * 100 == theirs.read()
        assert b"" == theirs.read()

        outer = Deflate()
        outer.receive(stack_of(Deflate(), Snappy()).encode(b"y"))
        assert outer.read().startswith(b"\xff\x06\x00\x00sNaPpY")

    def test_layers_do_not_join_pieces(self) -> None:
        stack = stack_of(Snappy(), Deflate())
        stack.receive(stack_of(Snappy(), Deflate()).encode(bytes(10_000_000)))
        sizes = []
        while piece := stack.read():
            sizes.append(len(piece))

        assert 10_000_000 == sum(sizes)
        assert max(sizes) <= 256 * 1024

    def test_without_layers_bytes_are_sent_unchanged(self) -> None:
        stack = stack_of(Deflate())
        stack.clear()

        assert not stack
        assert b"x" == stack.encode(b"x")


def stack_of(*layers: Deflate | Snappy) -> LayerStack:
    stack = LayerStack()
    for layer in layers:
        stack.push(layer)
    return stack
