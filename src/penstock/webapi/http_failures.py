"""Why a request of `http.client`, which works without an event loop, failed."""

from http.client import HTTPException, IncompleteRead, RemoteDisconnected

from penstock.connecting import reason_of

__all__ = ["http_reason"]


def http_reason(failure: OSError | ValueError | HTTPException) -> str:
    """One line for the user."""
    if isinstance(failure, RemoteDisconnected | IncompleteRead):
        return "the connection ended before the answer did"
    if isinstance(failure, HTTPException):
        return "what it answers is not HTTP"
    return reason_of(failure)
