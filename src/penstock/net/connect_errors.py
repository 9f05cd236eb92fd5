"""Texts for connection errors."""

import os
import socket
import ssl

__all__ = ["describe_error"]

# OpenSSL's reasons when the first bytes from the server are not TLS.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


def describe_error(failure: Exception) -> str:
    """The reason on one line, without the address that the event loop adds."""
    if isinstance(failure, TimeoutError):
        return "timed out"
    if isinstance(failure, ssl.SSLError) and getattr(failure, "reason", None) in _NOT_TLS:
        return "the server does not speak TLS on this port"
    if isinstance(
        failure, ssl.SSLCertVerificationError
    ):  # whose text also names OpenSSL's source file
        return f"certificate verify failed: {failure.verify_message}"
    is_system_error = not isinstance(failure, socket.gaierror | ssl.SSLError)
    if isinstance(failure, OSError) and failure.errno and is_system_error:
        return os.strerror(failure.errno)
    text = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
    return " ".join(text.split())
