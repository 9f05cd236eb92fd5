"""Attributes of messages: key, headers, expiry time, and the publisher's id. Pure.

The attributes of a batch are a MessagePack array with one element per message, which is nil or a
map with some of these keys:

    k  bin                      key: messages with the same key belong together
    h  array of [str, bin]      headers, in the publisher's order; a name may occur several times
    x  uint                     wall time in nanoseconds after which the message is obsolete
    p  bin                      the publisher's id of the message, to recognise a repetition

Readers ignore keys that they do not know.
"""

from collections.abc import Sequence

import msgspec

from penstock.common.errors import CorruptBatchError

__all__ = ["MessageAttributes", "decode_attributes", "encode_attributes"]


class MessageAttributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The attributes of one message."""

    key: bytes | None = msgspec.field(default=None, name="k")
    headers: tuple[tuple[str, bytes], ...] = msgspec.field(default=(), name="h")
    expires_ns: int = msgspec.field(default=0, name="x")
    """Wall time after which the message is obsolete; 0 if never."""
    publisher_id: bytes | None = msgspec.field(default=None, name="p")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[MessageAttributes | None])


def encode_attributes(attributes: Sequence[MessageAttributes | None]) -> bytes:
    """Encode the attributes of the messages of a batch; None for a message without any."""
    return _encoder.encode(list(attributes))


def decode_attributes(data: bytes, count: int) -> list[MessageAttributes | None]:
    """Decode the attributes of a batch with `count` messages; `data` is empty if it has none.
    Raises CorruptBatchError."""
    if not data:
        return [None] * count
    try:
        attributes = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptBatchError(f"the attributes are invalid: {error}") from error
    if len(attributes) != count:
        raise CorruptBatchError(f"the batch does not contain attributes of {count} messages")
    return attributes
