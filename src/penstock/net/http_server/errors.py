"""The ways in which a request goes wrong.

An `HttpError` is an answer of the API: an endpoint found fault with a request, the envelope of its
route words the answer, the connection lives on. A `BadRequest` is an answer of the server: what
came is no HTTP that we could safely go on reading, so the connection is closed after it. A
`CutShort` comes too late to be an answer: the body of one is on its way, and ends where it is.
"""

from http import HTTPStatus

from penstock.common.errors import Error

__all__ = ["BadRequest", "CutShort", "HttpError", "reason_phrase"]

# Go's words, where those of `http` differ between versions of Python.
_REASONS = {413: "Request Entity Too Large"}


def reason_phrase(status: int) -> str:
    """The words after the number in a status line."""
    return _REASONS.get(status) or HTTPStatus(status).phrase


class HttpError(Error):
    """What an endpoint raises to answer `status` with the API's error `code`."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


class CutShort(Error):
    """What the source of a streamed body raises when it cannot go on, with the reason to log. The
    connection is closed without the body's end, so that the peer does not take it for whole."""


class BadRequest(Error):
    """A request that is refused as a piece of HTTP, before any endpoint sees it.

    `detail` is shown to the peer, so it never quotes what the peer sent.
    """

    def __init__(self, status: int = 400, detail: str = "") -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail

    def __str__(self) -> str:
        line = f"{self.status} {reason_phrase(self.status)}"
        return f"{line}: {self.detail}" if self.detail else line

    def wire(self) -> bytes:
        """The answer, in the few lines that Go's server says it in."""
        return (
            f"HTTP/1.1 {self}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            "Connection: close\r\n"
            "\r\n"
            f"{self}"
        ).encode()
