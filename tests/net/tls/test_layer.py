"""TLS of a connection, both sides, without a socket; and with OpenSSL's client."""

import random
import shutil
import socket
import ssl
import subprocess
import threading
import warnings

import pytest
from tests.net.tls.certificates import Authority, Identity
from tests.net.tls.pairs import layers, shake_hands

from penstock.common.errors import TlsError
from penstock.net.tls import TlsInfo, TlsLayer, client_context, server_context
from penstock.net.tls.connection import PIECE_BYTES_MAX

NOISE = random.Random(1).randbytes(1_000_000)

VERSIONS = {
    "TLS1.0": ssl.TLSVersion.TLSv1,
    "TLS1.1": ssl.TLSVersion.TLSv1_1,
    "TLS1.2": ssl.TLSVersion.TLSv1_2,
    "TLS1.3": ssl.TLSVersion.TLSv1_3,
}


def capped(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.maximum_version = version
    return context


@pytest.fixture
def pair(server: Identity, authority: Authority) -> tuple[TlsLayer, TlsLayer]:
    return shake_hands(
        server_context(cert=server.cert, key=server.key),
        client_context(root_ca=authority.root_ca),
    )


def read_all(layer: TlsLayer) -> bytes:
    return b"".join(iter(layer.read, b""))


def test_one_side_reads_what_the_other_writes(pair: tuple[TlsLayer, TlsLayer]) -> None:
    for sender, receiver in (pair, pair[::-1]):
        for write in (b"x", b"frame " * 100, NOISE, b"last"):
            receiver.receive(sender.encode(write))

            assert write == read_all(receiver)


def test_data_is_read_in_pieces(pair: tuple[TlsLayer, TlsLayer]) -> None:
    ours, theirs = pair
    ours.receive(theirs.encode(NOISE))

    sizes = [len(piece) for piece in iter(ours.read, b"")]

    assert len(NOISE) == sum(sizes)
    assert PIECE_BYTES_MAX == max(sizes)


def test_a_connection_can_be_carried_byte_by_byte(server: Identity, authority: Authority) -> None:
    ours, theirs = layers(
        server_context(cert=server.cert, key=server.key),
        client_context(root_ca=authority.root_ca),
    )

    for sender, receiver in (theirs, ours), (ours, theirs), (theirs, ours):
        for byte in sender.pending():
            receiver.receive(bytes([byte]))
            assert b"" == receiver.read()

    assert not ours.is_handshaking
    assert not theirs.is_handshaking
    for byte in ours.encode(b"hello"):
        assert b"" == theirs.read()
        theirs.receive(bytes([byte]))
    assert b"hello" == theirs.read()


@pytest.mark.parametrize("name", VERSIONS)
def test_info_has_nsqs_names(name: str, server: Identity, authority: Authority) -> None:
    version = VERSIONS[name]
    expected = {
        "TLS1.0": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
        "TLS1.1": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
        "TLS1.2": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS1.3": "TLS_AES_256_GCM_SHA384",
    }[name]
    client = client_context(root_ca=authority.root_ca, min_version=version)

    ours, theirs = shake_hands(
        server_context(cert=server.cert, key=server.key, min_version=version),
        capped(client, version),
    )

    def info(common_name: str) -> TlsInfo:
        return TlsInfo(
            version=name, cipher_suite=expected, negotiated_protocol="", common_name=common_name
        )

    assert info("") == ours.info()
    assert info("server.example") == theirs.info()
    theirs.receive(ours.encode(b"hello"))
    assert b"hello" == theirs.read()


def test_info_has_the_negotiated_protocol(server: Identity, authority: Authority) -> None:
    contexts = (
        server_context(cert=server.cert, key=server.key),
        client_context(root_ca=authority.root_ca),
    )
    for context in contexts:
        context.set_alpn_protocols(["http/1.1"])

    assert "http/1.1" == shake_hands(*contexts)[0].info().negotiated_protocol


@pytest.mark.parametrize("name", ["TLS1.0", "TLS1.1"])
def test_tls_older_than_1_2_is_refused_unless_enabled(
    name: str, server: Identity, authority: Authority
) -> None:
    version = VERSIONS[name]
    client = client_context(root_ca=authority.root_ca, min_version=version)

    with pytest.raises(TlsError, match=r"^tls: unsupported protocol$"):
        shake_hands(server_context(cert=server.cert, key=server.key), capped(client, version))


def test_after_close_notify_data_can_still_be_sent_to_the_peer(
    pair: tuple[TlsLayer, TlsLayer],
) -> None:
    ours, theirs = pair
    ours.receive(theirs.encode(b"last words") + theirs.close())

    assert b"last words" == ours.read()
    assert b"" == ours.read()
    assert ours.has_ended
    assert not theirs.has_ended

    theirs.receive(ours.encode(b"understood") + ours.close())

    assert b"understood" == theirs.read()
    assert b"" == theirs.read()
    assert theirs.has_ended


def test_data_that_is_not_tls_is_refused(server: Identity) -> None:
    layer = TlsLayer(server_context(cert=server.cert, key=server.key))
    layer.receive(b"  V2IDENTIFY\n")

    with pytest.raises(TlsError, match=r"^tls: [a-z ]+$"):
        layer.read()

    assert b"" == layer.close()


def test_a_record_that_was_tampered_with_is_refused_with_an_alert(
    pair: tuple[TlsLayer, TlsLayer],
) -> None:
    ours, theirs = pair
    record = bytearray(theirs.encode(b"one") + theirs.encode(b"two"))
    record[-1] ^= 1
    ours.receive(bytes(record))

    with pytest.raises(TlsError, match=r"^tls: decryption failed or bad record mac$"):
        read_all(ours)

    assert ours.pending()


def test_a_server_for_another_host_is_refused(server: Identity, authority: Authority) -> None:
    contexts = (
        server_context(cert=server.cert, key=server.key),
        client_context(root_ca=authority.root_ca),
    )

    with pytest.raises(TlsError, match="certificate verify failed: Hostname mismatch"):
        shake_hands(*contexts, host="elsewhere.example")


def test_an_untrusted_server_is_refused_unless_verification_is_off(
    server: Identity, stranger: Authority
) -> None:
    ours = server_context(cert=server.cert, key=server.key)

    with pytest.raises(TlsError, match="certificate verify failed: unable to get local issuer"):
        shake_hands(ours, client_context(root_ca=stranger.root_ca))
    shake_hands(ours, client_context(insecure_skip_verify=True))


@pytest.mark.timeout(120)
# `make test` installs openssl if it can. Python's ssl cannot request new keys.
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_a_peer_may_change_its_keys(server: Identity) -> None:
    """OpenSSL's client changes keys on a line with a K, and requests that we do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        context = server_context(cert=server.cert, key=server.key)
        echo = threading.Thread(target=_echo_lines, args=(listener, context), daemon=True)
        echo.start()
        client = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with client:
            assert client.stdin is not None
            assert client.stdout is not None
            for line in (b"before\n", b"K\n", b"after\n"):
                client.stdin.write(line)
                client.stdin.flush()
                expected = b"KEYUPDATE\n" if line == b"K\n" else b"echo " + line
                assert expected in iter(client.stdout.readline, b"")
            client.kill()
        echo.join()


def _echo_lines(listener: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = listener.accept()
    layer = TlsLayer(context)
    with connection:
        while data := connection.recv(65_536):
            layer.receive(data)
            line = layer.read()
            connection.sendall(layer.pending())
            if line:
                connection.sendall(layer.encode(b"echo " + line))
