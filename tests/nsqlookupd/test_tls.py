"""TLS on both ports."""

import signal
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net.tls.certificates import Authority, Identity

from penstock.net.tls import client_context
from penstock.protocol import lookup_v1
from penstock.testing.nsqlookupd import NsqlookupdProcess, RawLookupClient, run_nsqlookupd
from penstock.testing.waiting import wait_until

NOT_SERVED = r"(?i)alert|reset|closed|pipe|eof"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server")


@pytest.fixture(scope="module")
def encrypted(authority: Authority, server: Identity) -> Iterator[NsqlookupdProcess]:
    with run_nsqlookupd(
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
        f"--tls-root-ca-file={authority.root_ca}",
        "--tls-client-auth-policy=require-verify",
    ) as nsqlookupd:
        yield nsqlookupd


@pytest.fixture(scope="module")
def known(authority: Authority) -> ssl.SSLContext:
    """A client with a certificate."""
    client = authority.issue("client")
    return client_context(root_ca=authority.root_ca, cert=client.cert, key=client.key)


def get(nsqlookupd: NsqlookupdProcess, target: str, tls: ssl.SSLContext) -> bytes:
    url = f"https://{nsqlookupd.http_address}{target}"
    with urllib.request.urlopen(url, timeout=60, context=tls) as response:
        answer: bytes = response.read()
        return answer


def test_a_node_registers_and_is_found(
    encrypted: NsqlookupdProcess, known: ssl.SSLContext, topic: str
) -> None:
    node = encrypted.connect(tls=known)
    node.identify(broadcast_address="n")
    node.call(lookup_v1.register(topic))

    assert b'"broadcast_address":"n"' in get(encrypted, f"/lookup?topic={topic}", known)


def test_an_error_can_be_read(encrypted: NsqlookupdProcess, known: ssl.SSLContext) -> None:
    peer = encrypted.connect(tls=known)
    peer.send(b"PONG\n")

    told = peer.read_to_end()

    assert lookup_v1.response(b"E_INVALID invalid command PONG") == told


def test_a_client_without_a_certificate_is_refused(
    encrypted: NsqlookupdProcess, authority: Authority
) -> None:
    stranger = client_context(root_ca=authority.root_ca)

    # With TLS 1.3, a client learns of the refusal only after its own handshake.
    with pytest.raises(OSError, match=NOT_SERVED):
        encrypted.connect(tls=stranger).call(lookup_v1.ping())
    with pytest.raises(OSError, match=NOT_SERVED):
        get(encrypted, "/ping", stranger)


def test_a_plaintext_client_is_refused(encrypted: NsqlookupdProcess) -> None:
    peer = RawLookupClient(encrypted.tcp_address)
    peer.send(lookup_v1.MAGIC, lookup_v1.ping())

    assert lookup_v1.OK not in peer.read_to_end()
    peer.close()


def test_sighup_loads_a_renewed_certificate(authority: Authority) -> None:
    identity = authority.issue("renewed")
    tls = client_context(root_ca=authority.root_ca)

    def serial(nsqlookupd: NsqlookupdProcess) -> object:
        host, _, port = nsqlookupd.tcp_address.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), ca_certs=authority.root_ca)

    flags = (f"--tls-cert={identity.cert}", f"--tls-key={identity.key}")
    with run_nsqlookupd(*flags) as nsqlookupd:
        peer = nsqlookupd.connect(tls=tls)
        before = serial(nsqlookupd)
        authority.issue("renewed")
        nsqlookupd.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP, certificates reloaded" in nsqlookupd.log, "the reload")

        assert before != serial(nsqlookupd)
        assert b"OK" == peer.call(lookup_v1.ping())
