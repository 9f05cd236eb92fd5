"""The files that pages are made of: styles, scripts, an icon. They are few, and kept in memory.

A page names them with a digest of their contents, so that a browser keeps each for good and still
sees the next version at once.
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from penstock.common.errors import ConfigError
from penstock.nsqadmin.json_responses import text_reply

__all__ = ["Assets"]

_OURS = Path(__file__).parent / "static"
_KEPT = "public, max-age=31536000, immutable"
_ASKED_AGAIN = "no-cache"


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    kind: str
    digest: str


class Assets:
    """All files below a folder."""

    def __init__(self, folder: str = "") -> None:
        """With a `folder`, for work on the pages, its files are read at each request."""
        self._folder = Path(folder) if folder else _OURS
        self._rereads = bool(folder)
        self._known = self._read_all()

    def path_of(self, name: str) -> str:
        """The path of an asset, after the base path."""
        return f"static/{name}?v={self._known[name].digest}"

    async def get(self, request: Request) -> Response:
        """`GET /static/...`."""
        if self._rereads:
            self._known = self._read_all()
        asset = self._known.get(request.path_params["asset"])
        if asset is None:
            return text_reply("NOT_FOUND", 404)
        tag = f'"{asset.digest}"'
        is_named_by_digest = request.query_params.get("v") == asset.digest
        headers = {
            "Content-Type": asset.kind,
            "ETag": tag,
            "Cache-Control": _KEPT if is_named_by_digest else _ASKED_AGAIN,
        }
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers)

    def _read_all(self) -> dict[str, _Asset]:
        """Raises ConfigError."""
        if not self._folder.is_dir():
            raise ConfigError(f"--dev-static-dir: {self._folder} is no folder")
        try:
            return {
                path.relative_to(self._folder).as_posix(): _read(path)
                for path in self._folder.rglob("*")
                if path.is_file()
            }
        except OSError as error:
            raise ConfigError(f"--dev-static-dir: {error}") from error


def _read(path: Path) -> _Asset:
    content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "text/plain"
    is_text = kind.startswith("text/") or kind.endswith(("javascript", "xml"))
    digest = hashlib.sha256(content).hexdigest()[:12]
    return _Asset(content, f"{kind}; charset=utf-8" if is_text else kind, digest)
