"""What may stand between a connection's transport and its protocol: compression, or TLS.

A layer is a pair of streams for the life of one connection, one each way. Layers stack: what one
`read` returns is what the next is to `receive`. Each is fed as much as it is read: a layer whose
peer sends a gigabyte of zeros in a megabyte hands them out in pieces, and holds no more than one.
"""

from typing import Final, Protocol

__all__ = ["PIECE_BYTES_MAX", "Layer"]

# The most that one `read` returns: enough to make the work per call small, little enough that
# nothing else waits long for it.
PIECE_BYTES_MAX: Final = 256 * 1024


class Layer(Protocol):
    """Turns plain bytes into what travels, and back."""

    def encode(self, data: bytes) -> bytes:
        """What is to be sent for `data`; the peer can read all of `data` once it has come."""
        ...

    def receive(self, data: bytes) -> None:
        """Take what came from the peer. Read until there is nothing more before the next."""
        ...

    def read(self) -> bytes:
        """The next piece of plain bytes; empty when more has to be received first.

        Raises CorruptStreamError if the received bytes are invalid, after all complete pieces
        before them were returned. The layer cannot be used afterwards.
        """
        ...
