"""TLS on TCP connections: negotiation, policies and failures."""

import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.net.tls.certificates import Authority, Identity
from tests.nsqd.refusal_counts import refusal_counts

from penstock.common.errors import ProtocolError, TlsError
from penstock.net.tls import client_context
from penstock.protocol import commands
from penstock.protocol.frames import ResponseFrame, error
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError
from penstock.testing.waiting import wait_until

NOBODY = Identity("", "")

IDENTIFY_TLS = commands.identify({"feature_negotiation": True, "tls_v1": True})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server", common_name="server.example")


@pytest.fixture(scope="module")
def nsqd(server: Identity) -> Iterator[NsqdProcess]:
    with run_tls(server) as process:
        yield process


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return client_context(root_ca=authority.root_ca)


@contextmanager
def run_tls(identity: Identity, *flags: str) -> Iterator[NsqdProcess]:
    with run_nsqd(
        f"--tls-cert={identity.cert}", f"--tls-key={identity.key}", "--https-address=", *flags
    ) as process:
        yield process


def why_it_failed(client: RawClient) -> str:
    """nsqd's error, in clear text after an alert, for a failed handshake."""
    said = client.read_to_end()
    start = said.index(b"E_IDENTIFY_FAILED")
    reason = said[start:].decode()

    assert said.endswith(error(ProtocolError("E_IDENTIFY_FAILED", reason.partition(" ")[2])))
    return reason


def test_the_response_is_plaintext_and_the_rest_is_encrypted(
    nsqd: NsqdProcess, context: ssl.SSLContext, topic: str
) -> None:
    client = nsqd.connect()

    assert client.identify(tls_v1=True)["tls_v1"] is True
    client.start_tls(context)
    assert ResponseFrame(b"OK") == client.next_frame()
    assert ("TLS1.3", "server.example") == (client.tls.version, client.tls.common_name)
    assert b"OK" == client.call(commands.pub(topic, b"x" * 1_000_000))
    client.subscribe(topic, "c", rdy=1)
    assert b"x" * 1_000_000 == client.message().body


def test_without_a_certificate_the_connection_stays_plaintext() -> None:
    with run_nsqd() as nsqd:
        client = nsqd.connect()

        assert client.identify(tls_v1=True)["tls_v1"] is False
        assert b"OK" == client.call(commands.pub("t", b"x"))


def test_a_client_without_feature_negotiation_gets_no_tls(nsqd: NsqdProcess, topic: str) -> None:
    client = nsqd.connect()

    assert b"OK" == client.call(commands.identify({"tls_v1": True}))
    assert b"OK" == client.call(commands.pub(topic, b"x"))


def test_commands_before_the_upgrade_are_answered_first(
    nsqd: NsqdProcess, context: ssl.SSLContext, topic: str
) -> None:
    client = nsqd.connect()
    client.send(commands.pub(topic, b"x"), IDENTIFY_TLS)

    assert b"OK" == client.response()
    assert b'"tls_v1":true' in client.response()
    client.start_tls(context)
    assert b"OK" == client.response()
    assert 1 == nsqd.stats(topic)["message_count"]


def test_a_client_may_identify_again_but_not_upgrade_again(
    nsqd: NsqdProcess, context: ssl.SSLContext
) -> None:
    client = nsqd.connect()
    client.upgrade(tls=context)

    assert client.identify(client_id="renamed")["tls_v1"] is False
    with pytest.raises(WireError, match="E_IDENTIFY_FAILED IDENTIFY failed already upgraded"):
        client.identify(tls_v1=True)
    with pytest.raises(DisconnectedError):
        client.next_frame()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"NOP\n" * 10, "wrong version number"),
        (b"GET / HTTP/1.1\r\n\r\n", "http request"),
        (b"\x16\x03\x01\x00\x05hello", "unexpected message"),
    ],
    ids=["commands", "HTTP", "nonsense"],
)
def test_data_that_is_no_handshake_gets_an_error(
    nsqd: NsqdProcess, sent: bytes, reason: str
) -> None:
    """Commands directly after IDENTIFY are no handshake either."""
    before = refusal_counts(nsqd)["e_identify_failed"]
    client = nsqd.connect()
    client.send(IDENTIFY_TLS, sent)

    assert f"E_IDENTIFY_FAILED IDENTIFY failed tls: {reason}" == why_it_failed(client)
    assert before + 1 == refusal_counts(nsqd)["e_identify_failed"]


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x16"])
@pytest.mark.parametrize("is_reset", [True, False])
def test_a_client_that_disconnects_during_the_handshake_is_removed(
    nsqd: NsqdProcess, sent: bytes, *, is_reset: bool
) -> None:
    client = nsqd.connect()
    client.identify(tls_v1=True)
    client.send(sent)
    left = nsqd.log.count("exiting ioloop")
    if is_reset:
        client.reset()
    else:
        client.close()

    wait_until(lambda: nsqd.log.count("exiting ioloop") > left, "nsqd to notice")


def test_heartbeats_wait_for_the_end_of_the_handshake(
    nsqd: NsqdProcess, context: ssl.SSLContext
) -> None:
    """A heartbeat in clear text would break the handshake. A client has 5 seconds for it, whatever
    its heartbeat interval.
    """
    client = nsqd.connect()
    client.identify(tls_v1=True, heartbeat_interval=1000)

    assert client.is_silent(seconds=2.2)
    client.start_tls(context)
    assert ResponseFrame(b"OK") == client.next_frame()
    assert ResponseFrame(b"_heartbeat_") == client.next_frame()


def test_commands_before_the_end_of_tls_are_executed(
    nsqd: NsqdProcess, context: ssl.SSLContext, topic: str
) -> None:
    client = nsqd.connect()
    client.upgrade(tls=context)
    client.send(commands.pub(topic, b"x") * 1000)
    client.end_tls()

    assert [ResponseFrame(b"OK")] * 1000 == [client.next_frame() for _ in range(1000)]
    with pytest.raises(DisconnectedError):
        client.next_frame()


@pytest.mark.parametrize(
    "garbage",
    [b"NOP\n" * 3, b"\x17\x03\x03\x00\x20" + bytes(32), b"\x15\x03\x03\x00\x02\x02\x28"],
    ids=["clear text", "a record", "an alert"],
)
def test_garbage_inside_tls_closes_only_this_connection(
    nsqd: NsqdProcess, context: ssl.SSLContext, topic: str, garbage: bytes
) -> None:
    """The broker is not affected either, although it has messages for this consumer."""
    before = refusal_counts(nsqd)["corrupt_stream"]
    broken, sound = nsqd.connect(), nsqd.connect()
    broken.upgrade(tls=context)
    broken.subscribe(topic, "c", rdy=2500)
    sound.upgrade(tls=context)
    # So many that some are processed before the rest is parsed.
    publishes = [broken.encoded(commands.pub(topic, b"x")) for _ in range(300)]
    broken.send_beneath(b"".join(publishes) + garbage)
    with suppress(ConnectionResetError):
        broken.read_to_end()

    sound.subscribe(topic, "c", rdy=1)
    assert b"x" == sound.message().body
    assert before + 1 == refusal_counts(nsqd)["corrupt_stream"]


@pytest.fixture(scope="module", params=["true", "tcp-https"])
def strict(server: Identity, request: pytest.FixtureRequest) -> Iterator[NsqdProcess]:
    with run_tls(server, f"--tls-required={request.param}") as process:
        yield process


class TestRequired:
    @pytest.mark.parametrize(
        ("word", "command"),
        [
            ("NOP", commands.nop()),
            ("PUB", commands.pub("t", b"x")),
            ("MPUB", commands.mpub("t", [b"x"])),
            ("DPUB", commands.dpub("t", 0, b"x")),
            ("SUB", commands.sub("t", "c")),
            ("RDY", commands.rdy(1)),
            ("FIN", commands.fin(b"0" * 16)),
            ("AUTH", commands.auth(b"x")),
            ("CLS", commands.cls()),
            ("WHAT", b"WHAT\n"),
        ],
    )
    def test_only_identify_is_accepted_before_tls(
        self, strict: NsqdProcess, word: str, command: bytes
    ) -> None:
        for opening in (b"", commands.identify({"feature_negotiation": True})):
            client = strict.connect()
            client.send(opening, command)
            if opening:
                client.response()

            expected = f"^E_INVALID cannot {word} in current state \\(TLS required\\)$"
            with pytest.raises(WireError, match=expected):
                client.response()
            assert b"" == client.read_to_end()

    def test_compression_does_not_satisfy_required_tls(self, strict: NsqdProcess) -> None:
        client = strict.connect()
        client.upgrade(deflate=True)

        with pytest.raises(WireError, match="TLS required"):
            client.call(commands.pub("t", b"x"))

    def test_all_commands_are_accepted_after_tls(
        self, strict: NsqdProcess, context: ssl.SSLContext
    ) -> None:
        client = strict.connect()
        client.upgrade(tls=context)
        client.send(commands.nop(), commands.pub("t", b"x"))

        assert b"OK" == client.response()


@pytest.mark.parametrize(
    ("flags", "version", "is_accepted"),
    [
        ((), ssl.TLSVersion.TLSv1_1, False),
        ((), ssl.TLSVersion.TLSv1_2, True),
        (("--tls-min-version=tls1.3",), ssl.TLSVersion.TLSv1_2, False),
        (("--tls-min-version=tls1.0",), ssl.TLSVersion.TLSv1, True),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_refused(
    *,
    flags: tuple[str, ...],
    version: ssl.TLSVersion,
    is_accepted: bool,
    server: Identity,
    authority: Authority,
) -> None:
    context = client_context(root_ca=authority.root_ca, min_version=version)
    context.maximum_version = version
    with run_tls(server, *flags) as nsqd:
        client = nsqd.connect()
        if is_accepted:
            client.upgrade(tls=context)

            assert b"OK" == client.call(commands.pub("t", b"x"))
        else:
            client.identify(tls_v1=True)
            with pytest.raises(TlsError, match="alert protocol version"):
                client.start_tls(context)
            expected = "E_IDENTIFY_FAILED IDENTIFY failed tls: unsupported protocol"
            assert expected == why_it_failed(client)


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("", {}),
        ("require", {"nobody": "peer did not return a certificate"}),
        (
            "require-verify",
            {
                "nobody": "peer did not return a certificate",
                "mallory": "certificate verify failed: unable to get local issuer certificate",
            },
        ),
    ],
)
def test_the_client_certificate_policy_is_applied(
    policy: str, refused: dict[str, str], server: Identity, authority: Authority, tmp_path: Path
) -> None:
    shown = {
        "nobody": NOBODY,
        "bob": authority.issue("bob", common_name="bob"),
        "mallory": Authority(tmp_path, "stranger").issue("mallory"),
    }
    flags = [f"--tls-client-auth-policy={policy}", f"--tls-root-ca-file={authority.root_ca}"]
    with run_tls(server, *flags) as nsqd:
        outcome = {name: why_refused(nsqd, authority, identity) for name, identity in shown.items()}

    expected = {
        name: f"E_IDENTIFY_FAILED IDENTIFY failed tls: {reason}" for name, reason in refused.items()
    }
    assert expected == {name: reason for name, reason in outcome.items() if reason}


def why_refused(nsqd: NsqdProcess, authority: Authority, identity: Identity) -> str:
    """The reason why a client with this certificate is refused; empty if it is served."""
    client = nsqd.connect()
    client.identify(tls_v1=True)
    context = client_context(root_ca=authority.root_ca, cert=identity.cert, key=identity.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # with TLS 1.3, a client learns this later
    try:
        client.start_tls(context)
    except TlsError:
        return why_it_failed(client)
    assert b"OK" == client.response()
    assert b"OK" == client.call(commands.pub("t", b"x"))
    return ""


def test_sighup_loads_new_certificates_and_keeps_all_connections(
    authority: Authority, context: ssl.SSLContext
) -> None:
    identity = authority.issue("renewed", common_name="before")
    with run_tls(identity) as nsqd:
        old, new = nsqd.connect(), nsqd.connect()
        old.upgrade(tls=context)

        authority.issue("renewed", common_name="after")
        nsqd.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP, certificates reloaded" in nsqd.log, "the reload")
        new.upgrade(tls=context)

        assert ["before", "after"] == [old.tls.common_name, new.tls.common_name]
        assert b"OK" == old.call(commands.pub("t", b"x"))
        new.subscribe("t", "c", rdy=1)
        assert b"x" == new.message().body
