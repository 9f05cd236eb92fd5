"""Why somebody could not be reached, in words for people."""

import os
import socket
import ssl

__all__ = ["reason_of"]

# OpenSSL's reasons when the first bytes from the server are not TLS.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


def reason_of(failure: Exception) -> str:
    """In the system's own words, on one line; the event loop's repeat the address."""
    if isinstance(failure, TimeoutError):
        return "timed out"
    if isinstance(failure, ssl.SSLError) and getattr(failure, "reason", None) in _NOT_TLS:
        return "the server does not speak TLS on this port"
    if isinstance(failure, ssl.SSLCertVerificationError):  # Its text says where in OpenSSL, too.
        return f"certificate verify failed: {failure.verify_message}"
    is_systems = not isinstance(failure, socket.gaierror | ssl.SSLError)
    if isinstance(failure, OSError) and failure.errno and is_systems:
        return os.strerror(failure.errno)
    text = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
    return " ".join(text.split())
