"""A TLS server and client in memory; the test transfers their bytes."""

import ssl

from penstock.net.tls import TlsLayer

__all__ = ["carry", "layers", "shake_hands"]


def layers(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str | None = "localhost"
) -> tuple[TlsLayer, TlsLayer]:
    """Both sides, before the handshake."""
    return TlsLayer(server), TlsLayer(client, server_side=False, server_hostname=host)


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str | None = "localhost"
) -> tuple[TlsLayer, TlsLayer]:
    """Both sides, after the handshake. Raises the error of the side that fails first."""
    ours, theirs = layers(server, client, host)
    carry(ours, theirs)
    assert not ours.is_handshaking
    assert not theirs.is_handshaking
    return ours, theirs


def carry(ours: TlsLayer, theirs: TlsLayer) -> None:
    """Transfer pending bytes in both directions until none are left. Expects no plain bytes."""
    while waiting := (theirs.pending(), ours.pending()):
        if not any(waiting):
            return
        for receiver, data in zip((ours, theirs), waiting, strict=True):
            receiver.receive(data)
            assert b"" == receiver.read()
