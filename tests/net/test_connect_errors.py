"""Texts for connection errors."""

import errno
import socket
import ssl

import pytest

from penstock.net.connect_errors import describe_error


def unverified() -> ssl.SSLCertVerificationError:
    failure = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:1006)")
    failure.verify_message = "self-signed certificate"
    return failure


def not_tls() -> ssl.SSLError:
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as failure:
        client.do_handshake()
    return failure.value


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (TimeoutError(), "timed out"),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"),
            "Connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "certificate\nverify failed"), "certificate verify failed"),
        (not_tls(), "the server does not speak TLS on this port"),
        (unverified(), "certificate verify failed: self-signed certificate"),
        (ValueError("two\nlines"), "two lines"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_reason_is_one_line_in_the_systems_words(failure: Exception, expected: str) -> None:
    assert expected == describe_error(failure)
