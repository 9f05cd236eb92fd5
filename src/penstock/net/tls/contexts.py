"""What a server or a client needs for TLS, made from the files it is told.

Whatever is wrong with a file raises ConfigError, with its path in the text. TLS 1.2 is the oldest
version unless an older one is asked for by name; with that come the weaker ciphers it knows.
Servers give out no tickets: connections are few and long. What else of a session is kept is kept
in its context, so that a client whose certificate is no longer accepted cannot come back on it.
"""

import ssl
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

from penstock.common.errors import ConfigError

__all__ = ["CLIENT_AUTH_POLICIES", "ReloadableContext", "client_context", "server_context"]

# Whom a server talks to: anybody; who has any certificate; who has one that verifies.
CLIENT_AUTH_POLICIES: Final = ("", "require", "require-verify")

# What OpenSSL must be told before it speaks TLS 1.0 or 1.1, whose signatures it holds to be weak.
_LEGACY_CIPHERS: Final = "DEFAULT:@SECLEVEL=0"

# A certificate that is accepted unseen is accepted with its dates as well.
_VERIFY_IGNORING_DATES: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which ssl has no name for

# What OpenSSL says of a key that is another certificate's: of the same kind, or of another.
_MISMATCHES: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")

# How many bytes of strangers' certificates a context keeps before it is made anew.
STRANGERS_BYTES_MAX: Final = 4 * 1024 * 1024


def server_context(
    *,
    cert: str,
    key: str,
    root_ca: str = "",
    client_auth_policy: str = "",
    min_version: int = ssl.TLSVersion.TLSv1_2,
) -> ssl.SSLContext:
    """The context of a server with this certificate. Raises ConfigError.

    Clients are verified by `root_ca`, or by the system's authorities if there is none.
    """
    assert client_auth_policy in CLIENT_AUTH_POLICIES
    accepts_strangers = client_auth_policy == "require"
    make = _StrangersContext if accepts_strangers else ssl.SSLContext
    context = make(ssl.PROTOCOL_TLS_SERVER)
    _set_min_version(context, min_version)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load_identity(context, cert, key)
    if client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    if root_ca or client_auth_policy == "require-verify":
        _load_authorities(context, root_ca, ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(
    *,
    root_ca: str = "",
    cert: str = "",
    key: str = "",
    insecure_skip_verify: bool = False,
    min_version: int = ssl.TLSVersion.TLSv1_2,
) -> ssl.SSLContext:
    """The context of a client. Raises ConfigError.

    Servers are verified, their host names too, by `root_ca` or by the system's authorities.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_min_version(context, min_version)
    context.options |= ssl.OP_NO_RENEGOTIATION
    if insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _load_authorities(context, root_ca, ssl.Purpose.SERVER_AUTH)
    if cert or key:
        _load_identity(context, cert, key or cert)
    return context


class ReloadableContext:
    """A server's context whose files can be read again, while connections go on as they are.

    Each new connection is to be given `current`.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        """`make` reads the files. Raises ConfigError."""
        self._make = make
        self._current = make()

    @property
    def current(self) -> ssl.SSLContext:
        """The context of what was read last."""
        if isinstance(self._current, _StrangersContext) and self._current.is_full:
            with suppress(ConfigError):  # then a full one has to do: its owner is told by `reload`
                self.reload()
        return self._current

    def reload(self) -> None:
        """Reads the files again. Raises ConfigError, and all stays as it was."""
        self._current = self._make()


class _StrangersContext(ssl.SSLContext):
    """Demands a certificate, and accepts any: it proves no more than that its key is at hand.

    OpenSSL does as much if its check is replaced by one that says yes; but ssl offers no way to. So
    a certificate is made one of the authorities as it arrives, just before it is verified, by way
    of the callback that ssl has for watching a handshake. Without that callback nobody would be
    accepted. A leaf of the wrong purpose, or with a key too weak, is still refused.
    """

    _strangers_bytes = 0

    def __new__(cls, protocol: int) -> Self:
        context = super().__new__(cls, protocol)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags |= ssl.VerifyFlags(_VERIFY_IGNORING_DATES)
        context._msg_callback = _accept_certificate  # type: ignore[attr-defined]
        return context

    @property
    def is_full(self) -> bool:
        """Whether it is time for a new one: what has been accepted cannot be forgotten."""
        return self._strangers_bytes > STRANGERS_BYTES_MAX

    def accept(self, certificate: bytes) -> None:
        self._strangers_bytes += len(certificate)
        with suppress(ssl.SSLError):  # what is no certificate fails when OpenSSL reads it itself
            self.load_verify_locations(cadata=certificate)


_HANDSHAKE: Final = 22
_CERTIFICATE: Final = 11


def _accept_certificate(
    connection: ssl.SSLObject,
    direction: str,
    version: int,
    content_type: int,
    message_type: int,
    message: bytes,
) -> None:
    if (direction, content_type, message_type) != ("read", _HANDSHAKE, _CERTIFICATE):
        return
    context: Any = connection.context
    leaf = _first_certificate(message, is_tls_1_3=version == ssl.TLSVersion.TLSv1_3)
    if leaf:
        context.accept(leaf)


def _first_certificate(message: bytes, *, is_tls_1_3: bool) -> bytes:
    """The first certificate, in DER, of a Certificate message (RFC 5246 7.4.2, RFC 8446 4.4.2).

    type 1, length 3, [TLS 1.3: context length 1, context], list length 3, (length 3, certificate)*
    """
    start = 4
    if is_tls_1_3:
        start += 1 + int.from_bytes(message[start : start + 1], "big")
    start += 3
    length = int.from_bytes(message[start : start + 3], "big")
    return message[start + 3 : start + 3 + length]


def _set_min_version(context: ssl.SSLContext, min_version: int) -> None:
    if min_version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers(_LEGACY_CIPHERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old versions were asked for by name
        context.minimum_version = ssl.TLSVersion(min_version)


def _load_identity(context: ssl.SSLContext, cert: str, key: str) -> None:
    _expect_pem(cert, b"CERTIFICATE-----", "certificate")
    _expect_pem(key, b"PRIVATE KEY-----", "key")

    def refuse_password() -> str:  # else OpenSSL would ask at the terminal
        raise ConfigError(f"TLS key {key}: it is encrypted, and there is no way to give a password")

    try:
        context.load_cert_chain(cert, key, refuse_password)
    except ssl.SSLError as failure:
        if failure.reason in _MISMATCHES:
            raise ConfigError(f"TLS key {key}: it does not belong to certificate {cert}") from None
        reason = (failure.reason or "unreadable").replace("_", " ").lower()
        raise ConfigError(f"TLS certificate {cert} with key {key}: {reason}") from None


def _load_authorities(context: ssl.SSLContext, root_ca: str, purpose: ssl.Purpose) -> None:
    if not root_ca:
        context.load_default_certs(purpose)
        return
    _expect_pem(root_ca, b"CERTIFICATE-----", "root CA file")
    try:
        context.load_verify_locations(root_ca)
    except ssl.SSLError as failure:
        reason = (failure.reason or "unreadable").replace("_", " ").lower()
        raise ConfigError(f"TLS root CA file {root_ca}: {reason}") from None


def _expect_pem(path: str, marker: bytes, what: str) -> None:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as failure:
        raise ConfigError(f"TLS {what} {path}: {failure.strerror}") from None
    if marker not in content:
        raise ConfigError(f"TLS {what} {path}: not in PEM format, or of another kind")
