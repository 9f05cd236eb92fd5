"""Error texts for failed requests of `http.client`."""

from http.client import HTTPException, IncompleteRead, RemoteDisconnected

from penstock.net.connect_errors import describe_error

__all__ = ["http_reason"]


def http_reason(failure: OSError | ValueError | HTTPException) -> str:
    """The reason of a failure, in one line for the user."""
    if isinstance(failure, RemoteDisconnected | IncompleteRead):
        return "the connection ended before the answer did"
    if isinstance(failure, HTTPException):
        return "what it answers is not HTTP"
    return describe_error(failure)
