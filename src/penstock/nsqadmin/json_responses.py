"""NSQ's answers, as starlette sends them."""

from starlette.responses import Response

from penstock.net.http_server import to_json

__all__ = ["json_error", "json_reply", "text_reply"]

_V1 = {"X-NSQ-Content-Type": "nsq; version=1.0"}
_JSON_TYPE = "application/json; charset=utf-8"


def json_reply(value: object, status: int = 200) -> Response:
    """A value in the V1 envelope, which is JSON but for a string: that is sent bare."""
    if isinstance(value, str):
        return Response(value, status, headers=_V1, media_type="text/plain; charset=utf-8")
    return Response(to_json(value), status, headers={**_V1, "Content-Type": _JSON_TYPE})


def json_error(status: int, code: str) -> Response:
    """The V1 envelope's error."""
    return json_reply({"message": code}, status)


def text_reply(text: str, status: int = 200) -> Response:
    """A plain text, such as that of /ping."""
    return Response(text, status, media_type="text/plain; charset=utf-8")
