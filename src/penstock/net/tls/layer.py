"""The TLS of one connection, between its transport and its protocol.

Bytes from the peer are given to `receive`, and plain bytes come out of `read`. After each `read`,
what `pending` returns has to be sent: the flights of a handshake, an alert, an answer to the peer's
change of keys. `encode` returns what is pending along with its own, in the order in which it is to
go. A client has something pending from the start.

There is no renegotiation: a peer that asks for one is told no, and may go on.
"""

import ssl
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from penstock.common.errors import TlsError
from penstock.net.tls.suites import standard_name

__all__ = ["TlsInfo", "TlsLayer"]

# The most that one `read` returns, the most that a record holds, and the most of them that one
# `read` looks at, since a record may hold as little as a byte.
PIECE_BYTES_MAX: Final = 256 * 1024
RECORD_BYTES_MAX: Final = 16 * 1024
RECORDS_PER_READ: Final = 256

# As OpenSSL has them, and as Go and NSQ do.
_VERSIONS: Final = {
    "TLSv1": "TLS1.0",
    "TLSv1.1": "TLS1.1",
    "TLSv1.2": "TLS1.2",
    "TLSv1.3": "TLS1.3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsInfo:
    """What a handshake has agreed on, in NSQ's words."""

    version: str  # TLS1.3
    cipher_suite: str  # TLS_AES_128_GCM_SHA256
    negotiated_protocol: str  # by ALPN; empty for none
    common_name: str  # of the peer's certificate; empty for none


class TlsLayer:
    """One side of one connection."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "ended", "handshaking")

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        """`server_hostname` is whom a client means to talk to."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side, server_hostname=server_hostname
        )
        self.handshaking = True  # nothing can be encoded yet
        self.ended = False  # the peer has said that nothing more comes
        self.shake_hands()

    def encode(self, data: bytes) -> bytes:
        """What is to be sent for `data`, and before it. The handshake must be over."""
        assert not self.handshaking, "nothing can be sent during the handshake"
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]  # a record at a time
        except ssl.SSLError as failure:
            raise _failed(failure) from None
        return self._outgoing.read()

    def receive(self, data: bytes) -> None:
        """Take what came from the peer."""
        self._incoming.write(data)

    def read(self) -> bytes:
        """The next piece of plain bytes; empty when more has to be received first.

        Raises TlsError; what is pending then tells the peer why.
        """
        if self.handshaking and not self.shake_hands():
            return b""
        pieces: list[bytes] = []
        room = PIECE_BYTES_MAX
        while room > 0 and len(pieces) < RECORDS_PER_READ and (piece := self._read_record()):
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)

    def pending(self) -> bytes:
        """What has to be sent although nobody called `encode`."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """What has to be sent last. The peer may still be read from."""
        if not self.handshaking:
            # The peer has not closed yet, or broke TLS before: we are done all the same.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
        return self._outgoing.read()

    def info(self) -> TlsInfo:
        """What was agreed. The handshake must be over."""
        cipher = self._tls.cipher()
        version = self._tls.version()
        assert cipher is not None, "nothing is agreed during the handshake"
        assert version is not None
        return TlsInfo(
            version=_VERSIONS.get(version, version),
            cipher_suite=standard_name(cipher[0]),
            negotiated_protocol=self._tls.selected_alpn_protocol() or "",
            common_name=self._common_name(),
        )

    def shake_hands(self) -> bool:
        """Goes on with the handshake as far as it can; whether it is over."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as failure:
            raise _failed(failure) from None
        self.handshaking = False
        return True

    def _read_record(self) -> bytes:
        try:
            piece = self._tls.read(RECORD_BYTES_MAX)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLZeroReturnError:
            piece = b""
        except ssl.SSLError as failure:
            raise _failed(failure) from None
        if not piece:
            self.ended = True
        return piece

    def _common_name(self) -> str:
        certificate: Any = self._tls.getpeercert() or {}
        parts = chain.from_iterable(certificate.get("subject", ()))
        return next((value for name, value in parts if name == "commonName"), "")


def _failed(failure: ssl.SSLError) -> TlsError:
    """OpenSSL's reason, without where in its source it was found."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return TlsError(f"tls: certificate verify failed: {failure.verify_message}")
    reason = failure.reason or failure.strerror or "broken"
    return TlsError(f"tls: {reason.replace('_', ' ').lower()}")
