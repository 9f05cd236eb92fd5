"""Client certificate policies, invalid files, and certificates that are renewed at runtime."""

import asyncio
import shutil
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from tests.net.tls.certificates import Authority, Identity
from tests.net.tls.pairs import shake_hands
from tests.net.tls.servers import echo_server

from penstock.common.errors import ConfigError, TlsError
from penstock.net.tls import ReloadableContext, TlsLayer, client_context, contexts, server_context

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


def outcome_of(ours: ssl.SSLContext, theirs: ssl.SSLContext) -> str:
    """The common name of an accepted client, or the reason of the refusal."""
    try:
        return shake_hands(ours, theirs)[0].info().common_name
    except TlsError as refusal:
        return str(refusal)


def self_signed(folder: Path, name: str, purpose: ObjectIdentifier) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .sign(key, SHA256())
    )
    identity = Identity(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    Path(identity.cert).write_bytes(certificate.public_bytes(Encoding.PEM))
    Path(identity.key).write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return identity


class TestPolicies:
    @pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
    @pytest.mark.parametrize(
        ("policy", "certificate", "expected"),
        [
            ("", "none", ""),
            ("", "trusted", ""),
            ("require", "none", "tls: peer did not return a certificate"),
            ("require", "trusted", "bob"),
            ("require", "strange", "mallory"),
            ("require", "expired", "eve"),
            ("require-verify", "none", "tls: peer did not return a certificate"),
            ("require-verify", "trusted", "bob"),
            ("require-verify", "strange", "tls: certificate verify failed: unable to get local "),
            (
                "require-verify",
                "expired",
                "tls: certificate verify failed: certificate has expired",
            ),
        ],
    )
    def test_clients_are_accepted_by_the_policy(
        self,
        *,
        policy: str,
        certificate: str,
        expected: str,
        version: ssl.TLSVersion,
        server: Identity,
        authority: Authority,
        stranger: Authority,
    ) -> None:
        past = datetime(2020, 1, 1, tzinfo=UTC)
        shown = {
            "none": Identity("", ""),
            "trusted": authority.issue("bob", common_name="bob"),
            "strange": stranger.issue("mallory", common_name="mallory"),
            "expired": authority.issue("eve", common_name="eve", not_after=past),
        }[certificate]
        ours = server_context(
            cert=server.cert,
            key=server.key,
            root_ca=authority.root_ca,
            client_auth_policy=policy,
            min_version=version,
        )
        ours.maximum_version = version
        theirs = client_context(root_ca=authority.root_ca, cert=shown.cert, key=shown.key)

        assert expected == outcome_of(ours, theirs)[: len(expected) or None]

    @pytest.mark.parametrize(
        ("purpose", "expected"),
        [
            (ExtendedKeyUsageOID.CLIENT_AUTH, "alone"),
            (ExtendedKeyUsageOID.SERVER_AUTH, "tls: certificate verify failed: unsuitable "),
        ],
    )
    def test_any_certificate_may_be_self_signed_but_must_be_for_clients(
        self,
        purpose: ObjectIdentifier,
        expected: str,
        server: Identity,
        authority: Authority,
        tmp_path: Path,
    ) -> None:
        shown = self_signed(tmp_path, "alone", purpose)
        ours = server_context(cert=server.cert, key=server.key, client_auth_policy="require")
        theirs = client_context(root_ca=authority.root_ca, cert=shown.cert, key=shown.key)

        assert expected == outcome_of(ours, theirs)[: len(expected)]

    def test_client_certificates_use_bounded_memory(
        self,
        server: Identity,
        authority: Authority,
        stranger: Authority,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        ours = ReloadableContext(
            lambda: server_context(cert=server.cert, key=server.key, client_auth_policy="require")
        )
        first = ours.current
        monkeypatch.setattr(contexts, "CLIENT_CERTS_BYTES_MAX", 1000)

        for name in ("one", "two", "three", "four"):
            shown = stranger.issue(name, common_name=name)
            theirs = client_context(root_ca=authority.root_ca, cert=shown.cert, key=shown.key)
            assert name == shake_hands(ours.current, theirs)[0].info().common_name

        assert first is not ours.current
        assert first.cert_store_stats()["x509"] < 4


class TestFiles:
    @pytest.mark.parametrize(
        ("cert", "key", "expected"),
        [
            ("absent", "key", "TLS certificate absent: No such file or directory"),
            ("cert", "absent", "TLS key absent: No such file or directory"),
            ("cert", "/", "TLS key /: Is a directory"),
            ("key", "key", "TLS certificate key: not in PEM format, or of another kind"),
            ("cert", "cert", "TLS key cert: not in PEM format, or of another kind"),
            ("cert.torn", "key", "TLS certificate cert.torn with key key: "),
            ("cert", "key.torn", "TLS certificate cert with key key.torn: "),
            ("cert", "key.rsa", "TLS key key.rsa: it does not belong to certificate cert"),
            ("cert", "key.ecdsa", "TLS key key.ecdsa: it does not belong to certificate cert"),
            (
                "cert",
                "key.secret",
                "TLS key key.secret: it is encrypted; passwords are not supported",
            ),
        ],
    )
    @pytest.mark.usefixtures("broken_files")
    def test_a_certificate_that_cannot_be_used_is_named_in_one_line(
        self, cert: str, key: str, expected: str
    ) -> None:
        with pytest.raises(ConfigError) as refusal:
            server_context(cert=cert, key=key)

        assert expected == str(refusal.value)[: len(expected)]
        assert "\n" not in str(refusal.value)

    @pytest.fixture
    def broken_files(
        self, server: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name, path in zip(("cert", "key"), server, strict=True):
            lines = Path(path).read_text(encoding="ascii").splitlines(keepends=True)
            Path(name).write_text("".join(lines), encoding="ascii")
            Path(f"{name}.torn").write_text("".join([*lines[:3], lines[-1]]), encoding="ascii")
        private_key = load_pem_private_key(Path("key").read_bytes(), None)
        encryption = BestAvailableEncryption(b"secret")
        Path("key.secret").write_bytes(
            private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        )
        for kind in trustme.KeyType:
            other = trustme.CA().issue_cert("localhost", key_type=kind)
            other.private_key_pem.write_to_path(f"key.{kind.name.lower()}")

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (None, "TLS root CA file {path}: No such file or directory"),
            ("", "TLS root CA file {path}: not in PEM format, or of another kind"),
            ("-----BEGIN CERTIFICATE-----\n?", "TLS root CA file {path}: [a-z ]+"),
        ],
    )
    def test_a_root_ca_that_cannot_be_used_is_named_in_one_line(
        self, content: str | None, expected: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "roots.pem"
        if content is not None:
            path.write_text(content)

        with pytest.raises(ConfigError, match=f"^{expected.format(path=path)}$"):
            client_context(root_ca=str(path))


def serial_number(shown: ssl.SSLObject | ssl.SSLSocket) -> str:
    return str((shown.getpeercert() or {})["serialNumber"])


class TestReload:
    @pytest.mark.parametrize("host", ["localhost", None], ids=["named", "unnamed"])
    def test_new_connections_get_the_new_certificate_and_old_ones_continue(
        self, host: str | None, authority: Authority
    ) -> None:
        async def scenario(port: int, context: ReloadableContext) -> None:
            reader, writer = await connect(port, authority, host)
            before = serial_number(writer.get_extra_info("ssl_object"))

            authority.issue("changing")
            context.reload()

            _, new_writer = await connect(port, authority, host)
            assert before != serial_number(new_writer.get_extra_info("ssl_object"))
            writer.write(b"still here\n")
            assert b"still here\n" == await reader.readline()
            for each in (writer, new_writer):
                each.close()

        identity = authority.issue("changing")
        run_listener(lambda: server_context(cert=identity.cert, key=identity.key), scenario)

    def test_clients_are_verified_by_the_new_root_ca(
        self, server: Identity, authority: Authority, stranger: Authority, tmp_path: Path
    ) -> None:
        root_ca = tmp_path / "roots.pem"
        shutil.copy(authority.root_ca, root_ca)
        bob, mallory = authority.issue("bob"), stranger.issue("mallory")

        async def scenario(port: int, context: ReloadableContext) -> None:
            assert await can_talk(port, authority, bob)
            assert not await can_talk(port, authority, mallory)

            shutil.copy(stranger.root_ca, root_ca)
            context.reload()

            assert not await can_talk(port, authority, bob)
            assert await can_talk(port, authority, mallory)

        run_listener(
            lambda: server_context(
                cert=server.cert,
                key=server.key,
                root_ca=str(root_ca),
                client_auth_policy="require-verify",
            ),
            scenario,
        )

    def test_a_session_from_before_a_reload_is_not_resumed(
        self, server: Identity, authority: Authority
    ) -> None:
        context = ReloadableContext(lambda: server_context(cert=server.cert, key=server.key))
        theirs = client_context(root_ca=authority.root_ca)
        theirs.maximum_version = TLS_1_2  # a client that can resume without a ticket

        session, is_resumed = resume(context.current, theirs, None)
        assert not is_resumed
        session, is_resumed = resume(context.current, theirs, session)
        assert is_resumed

        context.reload()

        _, is_resumed = resume(context.current, theirs, session)
        assert not is_resumed

    def test_a_listener_accepts_clients_with_any_certificate(
        self, server: Identity, authority: Authority, stranger: Authority
    ) -> None:
        mallory = stranger.issue("mallory")

        async def scenario(port: int, _context: ReloadableContext) -> None:
            assert await can_talk(port, authority, mallory)
            assert not await can_talk(port, authority, Identity("", ""))

        run_listener(
            lambda: server_context(cert=server.cert, key=server.key, client_auth_policy="require"),
            scenario,
        )

    def test_invalid_files_change_nothing(self, authority: Authority) -> None:
        identity = authority.issue("breaking")
        context = ReloadableContext(lambda: server_context(cert=identity.cert, key=identity.key))
        before = context.current
        Path(identity.key).unlink()

        with pytest.raises(ConfigError, match="No such file"):
            context.reload()

        assert before is context.current
        shake_hands(context.current, client_context(root_ca=authority.root_ca))


def resume(
    ours: ssl.SSLContext, theirs: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bool | None]:
    """Connect with a session and close; returns the session and whether it was resumed."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = theirs.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
    server = TlsLayer(ours)
    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        server.receive(outgoing.read())
        server.read()
        incoming.write(server.pending())
    client.do_handshake()
    outcome = client.session, client.session_reused
    with suppress(ssl.SSLWantReadError):
        client.unwrap()
    server.receive(outgoing.read())
    server.read()
    server.close()
    return outcome


def run_listener(
    make: Callable[[], ssl.SSLContext],
    scenario: Callable[[int, ReloadableContext], Awaitable[None]],
) -> None:
    """Run `scenario` against a server that sends back each line."""

    async def main() -> None:
        context = ReloadableContext(make)
        async with echo_server(context) as port:
            await asyncio.wait_for(scenario(port, context), 60)

    uvloop.run(main())


async def connect(
    port: int, authority: Authority, host: str | None, identity: Identity | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    cert, key = identity or ("", "")
    context = client_context(root_ca=authority.root_ca, cert=cert, key=key)
    context.check_hostname = host is not None
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host or "")


async def can_talk(port: int, authority: Authority, identity: Identity) -> bool:
    try:
        reader, writer = await connect(port, authority, "localhost", identity)
        writer.write(b"hello\n")
        heard = await reader.readline()
        writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
    return heard == b"hello\n"
