"""Why somebody could not be reached, in words for people."""

import os
import socket
import ssl

__all__ = ["reason_of"]


def reason_of(failure: Exception) -> str:
    """In the system's own words, on one line; the event loop's repeat the address."""
    if isinstance(failure, TimeoutError):
        return "timed out"
    has_number = isinstance(failure, OSError) and failure.errno
    if has_number and not isinstance(failure, socket.gaierror | ssl.SSLError):
        return os.strerror(failure.errno)
    text = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
    return " ".join(text.split())
