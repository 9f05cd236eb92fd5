"""SSL contexts of servers and clients, made from certificate files.

An invalid file raises ConfigError, which names its path. The default minimum is TLS 1.2; a lower
minimum also enables the weaker ciphers of these versions. Servers issue no session tickets:
connections are few and long, and a client whose certificate is no longer accepted cannot resume a
session.
"""

import ssl
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from penstock.common.errors import ConfigError

__all__ = [
    "CLIENT_AUTH_POLICIES",
    "ReloadableContext",
    "client_context",
    "configured_server_context",
    "server_context",
]

# Accepted clients: all; with any certificate; with a verified certificate.
CLIENT_AUTH_POLICIES: Final = ("", "require", "require-verify")

# OpenSSL accepts the signatures of TLS 1.0 and 1.1 only at security level 0.
_LEGACY_CIPHERS: Final = "DEFAULT:@SECLEVEL=0"

# With policy `require`, the validity dates of a client's certificate are not checked.
_VERIFY_IGNORING_DATES: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which ssl has no name for

# OpenSSL's errors for a key that does not belong to the certificate.
_MISMATCHES: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")

# Maximum bytes of client certificates that a context stores before it is replaced.
CLIENT_CERTS_BYTES_MAX: Final = 4 * 1024 * 1024


def server_context(
    *,
    cert: str,
    key: str,
    root_ca: str = "",
    client_auth_policy: str = "",
    min_version: int = ssl.TLSVersion.TLSv1_2,
) -> ssl.SSLContext:
    """Context of a server. Raises ConfigError.

    Client certificates are verified with `root_ca`, by default with the system's CAs.
    """
    assert client_auth_policy in CLIENT_AUTH_POLICIES
    make = AnyClientCertContext if client_auth_policy == "require" else ssl.SSLContext
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
    """Context of a client. Raises ConfigError.

    Certificate and host name of the server are verified with `root_ca`, by default with the
    system's CAs.
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
    """A context that can be reloaded from its files.

    Use `current` for each new connection; existing connections are not affected.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        """`make` creates a context from the certificate files, now and at each `reload`. Raises the
        ConfigError of `make`."""
        self._make = make
        self._current = make()

    @property
    def current(self) -> ssl.SSLContext:
        """The context that was loaded last."""
        if isinstance(self._current, AnyClientCertContext) and self._current.is_full:
            with suppress(ConfigError):  # use the full one: the next `reload` reports the error
                self.reload()
        return self._current

    def reload(self) -> None:
        """Read the files again. If that raises ConfigError, the old context remains."""
        self._current = self._make()


def configured_server_context(
    *,
    cert: str,
    key: str,
    root_ca: str,
    client_auth_policy: str,
    min_version: int = ssl.TLSVersion.TLSv1_2,
) -> ReloadableContext | None:
    """The reloadable context of a daemon with these options; None without a certificate. Raises
    ConfigError."""
    if not cert:
        return None
    make = partial(
        server_context,
        cert=cert,
        key=key,
        root_ca=root_ca,
        client_auth_policy=client_auth_policy,
        min_version=min_version,
    )
    try:
        return ReloadableContext(make)
    except ConfigError as error:
        raise ConfigError(f"failed to build TLS config - {error}") from error


class AnyClientCertContext(ssl.SSLContext):
    """Requires a client certificate and accepts any, which proves only possession of its key.

    OpenSSL has a verify callback for this, but Python's ssl module does not expose it. Instead, the
    message callback adds each client certificate to the trusted CAs just before OpenSSL verifies
    it. Certificates with a wrong purpose or a weak key are still rejected.
    """

    _client_certs_bytes = 0

    def __new__(cls, protocol: int) -> Self:
        context = super().__new__(cls, protocol)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags |= ssl.VerifyFlags(_VERIFY_IGNORING_DATES)
        context._msg_callback = _accept_certificate  # type: ignore[attr-defined]
        return context

    @property
    def is_full(self) -> bool:
        """Whether to replace this context: trusted certificates cannot be removed."""
        return self._client_certs_bytes > CLIENT_CERTS_BYTES_MAX

    def accept(self, certificate: bytes) -> None:
        self._client_certs_bytes += len(certificate)
        with suppress(ssl.SSLError):  # OpenSSL rejects an invalid certificate itself
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
        warnings.simplefilter("ignore", DeprecationWarning)  # the user configured an old version
        context.minimum_version = ssl.TLSVersion(min_version)


def _load_identity(context: ssl.SSLContext, cert: str, key: str) -> None:
    _check_pem(cert, b"CERTIFICATE-----", "certificate")
    _check_pem(key, b"PRIVATE KEY-----", "key")

    def reject_password() -> str:  # otherwise OpenSSL prompts on the terminal
        raise ConfigError(f"TLS key {key}: it is encrypted; passwords are not supported")

    try:
        context.load_cert_chain(cert, key, reject_password)
    except ssl.SSLError as failure:
        if failure.reason in _MISMATCHES:
            raise ConfigError(f"TLS key {key}: it does not belong to certificate {cert}") from None
        reason = (failure.reason or "unreadable").replace("_", " ").lower()
        raise ConfigError(f"TLS certificate {cert} with key {key}: {reason}") from None


def _load_authorities(context: ssl.SSLContext, root_ca: str, purpose: ssl.Purpose) -> None:
    if not root_ca:
        context.load_default_certs(purpose)
        return
    _check_pem(root_ca, b"CERTIFICATE-----", "root CA file")
    try:
        context.load_verify_locations(root_ca)
    except ssl.SSLError as failure:
        reason = (failure.reason or "unreadable").replace("_", " ").lower()
        raise ConfigError(f"TLS root CA file {root_ca}: {reason}") from None


def _check_pem(path: str, marker: bytes, what: str) -> None:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as failure:
        raise ConfigError(f"TLS {what} {path}: {failure.strerror}") from None
    if marker not in content:
        raise ConfigError(f"TLS {what} {path}: not in PEM format, or of another kind")
