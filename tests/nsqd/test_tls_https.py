"""HTTPS: client certificates, --tls-required, and the renewal of certificates."""

import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from tests.net.tls.certificates import Authority, Identity

from penstock.net.tls import client_context
from penstock.testing.nsqd import HttpAnswer, NsqdProcess, NsqdStartError, run_nsqd
from penstock.testing.waiting import wait_until

NOBODY = Identity("", "")
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server")


@contextmanager
def run_https(identity: Identity, *flags: str) -> Iterator[NsqdProcess]:
    cert, key = f"--tls-cert={identity.cert}", f"--tls-key={identity.key}"
    with run_nsqd("--https-address=127.0.0.1:0", cert, key, *flags) as nsqd:
        yield nsqd


def https_port(nsqd: NsqdProcess) -> int:
    found = re.search(r"HTTPS: listening on 127\.0\.0\.1:(\d+)", nsqd.log)
    assert found is not None
    return int(found[1])


def connect(
    nsqd: NsqdProcess, authority: Authority, identity: Identity = NOBODY
) -> HTTPSConnection:
    context = client_context(root_ca=authority.root_ca, cert=identity.cert, key=identity.key)
    return HTTPSConnection("127.0.0.1", https_port(nsqd), timeout=60, context=context)


def ask(connection: HTTPSConnection, method: str, target: str, body: bytes = b"") -> HttpAnswer:
    connection.request(method, target, body)
    response = connection.getresponse()
    return HttpAnswer(response.status, response.read())


def is_served(connection: HTTPSConnection) -> bool:
    """Whether a ping succeeds; False if the handshake is refused."""
    try:
        return HttpAnswer(200, b"OK") == ask(connection, "GET", "/ping")
    except (ssl.SSLError, ConnectionError):
        return False
    finally:
        connection.close()


def test_https_has_all_endpoints_of_http(server: Identity, authority: Authority) -> None:
    with run_https(server) as nsqd:
        connection = connect(nsqd, authority)
        message = bytes(range(256)) * (MEGABYTE // 256)

        assert HttpAnswer(200, b"OK") == ask(connection, "POST", "/pub?topic=t", message)
        assert message == nsqd.consumer("t", "c").message().body
        assert (
            1 == ask(connection, "GET", "/stats?format=json").json()["topics"][0]["message_count"]
        )
        assert 404 == ask(connection, "GET", "/nowhere").status
        assert HttpAnswer(200, b"OK") == nsqd.http("GET", "/ping")
        connection.close()


def test_https_is_served_where_plain_http_is_not(server: Identity, authority: Authority) -> None:
    with run_https(server, "--http-address=") as nsqd:
        wait_until(lambda: "HTTPS: listening" in nsqd.log, "HTTPS")

        assert is_served(connect(nsqd, authority))


def test_plaintext_is_refused_if_tls_is_required(server: Identity, authority: Authority) -> None:
    with run_https(server, "--tls-required") as nsqd:
        refused = HttpAnswer(
            403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port(nsqd)
        )

        assert refused == nsqd.http("GET", "/ping")
        assert refused == nsqd.http("POST", "/pub?topic=t", b"in the open")
        assert refused == nsqd.http("GET", "/nowhere")
        assert is_served(connect(nsqd, authority))


def test_required_tls_without_https_announces_no_http_port(server: Identity) -> None:
    with run_https(server, "--tls-required", "--https-address=") as nsqd:
        assert {"message": "TLS_REQUIRED", "https_port": 0} == nsqd.http("GET", "/ping").json()


def test_tcp_https_allows_plain_http(server: Identity, authority: Authority) -> None:
    with run_https(server, "--tls-required=tcp-https") as nsqd:
        assert HttpAnswer(200, b"OK") == nsqd.http("GET", "/ping")
        assert is_served(connect(nsqd, authority))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("require", {"nobody": False, "bob": True, "mallory": True}),
        ("require-verify", {"nobody": False, "bob": True, "mallory": False}),
    ],
)
def test_client_certificates_are_checked_by_the_policy(
    policy: str, expected: dict[str, bool], server: Identity, authority: Authority, tmp_path: Path
) -> None:
    shown = {
        "nobody": NOBODY,
        "bob": authority.issue("bob"),
        "mallory": Authority(tmp_path, "stranger").issue("mallory"),
    }
    flags = (f"--tls-client-auth-policy={policy}", f"--tls-root-ca-file={authority.root_ca}")
    with run_https(server, *flags) as nsqd:
        outcome = {name: is_served(connect(nsqd, authority, shown[name])) for name in shown}

        assert expected == outcome
        assert 403 == nsqd.http("GET", "/ping").status


@pytest.mark.parametrize(
    ("flags", "version", "expected"),
    [
        ((), ssl.TLSVersion.TLSv1_1, False),
        ((), ssl.TLSVersion.TLSv1_2, True),
        (("--tls-min-version=tls1.3",), ssl.TLSVersion.TLSv1_2, False),
        (("--tls-min-version=tls1.0",), ssl.TLSVersion.TLSv1, True),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_versions_are_refused(
    *,
    flags: tuple[str, ...],
    version: ssl.TLSVersion,
    expected: bool,
    server: Identity,
    authority: Authority,
) -> None:
    with run_https(server, *flags) as nsqd:
        context = client_context(root_ca=authority.root_ca, min_version=version)
        context.maximum_version = version
        connection = HTTPSConnection("127.0.0.1", https_port(nsqd), timeout=60, context=context)

        assert expected == is_served(connection)


def serial_number(connection: HTTPSConnection) -> object:
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    return (connection.sock.getpeercert() or {})["serialNumber"]


class TestReload:
    def test_sighup_loads_renewed_certificates_and_keeps_connections(
        self, authority: Authority
    ) -> None:
        identity = authority.issue("renewed")
        with run_https(identity) as nsqd:
            old, new = connect(nsqd, authority), connect(nsqd, authority)
            before = serial_number(old)

            authority.issue("renewed")
            nsqd.send_signal(signal.SIGHUP)
            wait_until(lambda: "SIGHUP, certificates reloaded" in nsqd.log, "the reload")

            assert before != serial_number(new)
            assert HttpAnswer(200, b"OK") == ask(old, "GET", "/ping")
            old.close()
            new.close()

    def test_invalid_files_are_logged_and_change_nothing(self, authority: Authority) -> None:
        identity = authority.issue("broken")
        with run_https(identity) as nsqd:
            Path(identity.key).write_text("no key", encoding="ascii")
            nsqd.send_signal(signal.SIGHUP)
            wait_until(lambda: "the old certificates stay in use" in nsqd.log, "the error")

            assert is_served(connect(nsqd, authority))
            assert 1 == nsqd.log.count(identity.key)


def test_an_invalid_certificate_fails_the_start_in_one_line(server: Identity) -> None:
    with pytest.raises(NsqdStartError) as refusal, run_https(Identity(server.cert, "no.key")):
        pass

    assert 1 == refusal.value.exit_code
    expected = "FATAL: failed to build TLS config - TLS key no.key: No such file or directory\n"
    assert refusal.value.log.endswith(expected)


def test_failed_handshakes_are_logged_and_affect_no_other_client(
    server: Identity, authority: Authority
) -> None:
    with run_https(server) as nsqd:
        address = ("127.0.0.1", https_port(nsqd))
        for garbage in (b"GET /ping HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"):
            with socket.create_connection(address, timeout=60) as peer:
                peer.sendall(garbage)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65_536):
                    pass

        assert is_served(connect(nsqd, authority))
        assert 1 == len(re.findall(r"INFO: HTTPS: \[127[^]]+\] tls: http request\n", nsqd.log))
        assert b'reason="tls"} 1\n' in nsqd.http("GET", "/metrics").body


@pytest.mark.slow
def test_a_handshake_that_hangs_times_out(server: Identity, authority: Authority) -> None:
    with run_https(server) as nsqd:
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", https_port(nsqd)), timeout=60) as peer:
            peer.sendall(b"\x16\x03\x01")
            assert is_served(connect(nsqd, authority))

            assert b"" == peer.recv(65_536)

        assert 4 < time.monotonic() - started
