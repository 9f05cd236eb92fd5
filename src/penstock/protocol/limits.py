"""How much a client may ask for. The defaults are the reference's."""

from dataclasses import dataclass

__all__ = ["LINE_BYTES_MAX", "Limits"]

# The reference reads lines into a buffer of this size, the newline included.
LINE_BYTES_MAX = 16 * 1024

# What one message takes at least in a multi-publish: its size and one byte.
_MULTI_ENTRY_BYTES_MIN = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """A server's limits, as its flags set them."""

    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_rdy_count: int = 2500
    max_req_timeout_ms: int = 60 * 60 * 1000
    max_defer_timeout_ms: int = 60 * 60 * 1000

    @property
    def max_messages(self) -> int:
        """How many messages fit into the largest multi-publish."""
        return (self.max_body_size - 4) // _MULTI_ENTRY_BYTES_MIN
