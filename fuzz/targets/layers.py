"""Snappy and deflate beneath the protocol.

The first byte selects the layer. The other bytes are used as a compressed stream, for which all
cuts must give the same result or the same error, and as plain bytes, which must survive a round
trip.
"""

from fuzz.cutting import Pieces, cuttings
from penstock.common.errors import CorruptStreamError
from penstock.protocol.compression import STREAM_IDENTIFIER, Deflate, Layer, Snappy

__all__ = ["SEEDS", "TOKENS", "check"]

PLAIN = b"PUB t\n\0\0\0\5hello" * 9

SEEDS = [
    b"s" + Snappy().encode(PLAIN),
    b"s" + Snappy().encode(b"x") + b"\xfe\2\0\0xx" + STREAM_IDENTIFIER,
    b"d" + Deflate().encode(PLAIN),
    b"d" + Deflate(1).encode(PLAIN) + Deflate(0).encode(b"x"),
    b"d" + PLAIN,
]
TOKENS = [STREAM_IDENTIFIER, b"\1\5\0\0"]


def check(data: bytes) -> None:
    kind, stream = data[:1], data[1:]
    whole, *others = (decoded(layer_of(kind), pieces) for pieces in cuttings(stream))
    for plain, is_whole in others:
        assert is_whole == whole[1], f"cut otherwise: {is_whole}, whole: {whole[1]}"
        # Data before damage may be lost with it if both are in one piece.
        assert plain == whole[0] or not is_whole, (plain, whole)
    *_, pieces = cuttings(stream)
    encoder = layer_of(kind)
    sent = b"".join(map(encoder.encode, pieces))
    for cut in cuttings(sent):
        assert decoded(layer_of(kind), cut) == (stream, True)


def layer_of(kind: bytes) -> Layer:
    return Snappy() if kind == b"s" else Deflate()


def decoded(layer: Layer, pieces: Pieces) -> tuple[bytes, bool]:
    """The plain bytes, and whether the stream was valid to its end."""
    plain = b""
    try:
        for piece in pieces:
            layer.receive(piece)
            while more := layer.read():
                plain += more
    except CorruptStreamError:
        return plain, False
    return plain, True
