"""Static files: styles, scripts and the icon, served from memory.

Pages link to a file with a digest of its content. So browsers can cache each file forever and still
load a new version at once.
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from penstock.common.errors import ConfigError
from penstock.nsqadmin.responses import text_reply

__all__ = ["Assets"]

_STATIC_FOLDER = Path(__file__).parent / "static"
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_CACHE_REVALIDATE = "no-cache"


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    content_type: str
    digest: str


class Assets:
    """Serves all files below a folder."""

    def __init__(self, folder: str = "") -> None:
        """If a `folder` is given (for development), its files are read again at each request.

        Raises ConfigError if the folder cannot be read.
        """
        self._folder = Path(folder) if folder else _STATIC_FOLDER
        self._reloads = bool(folder)
        self._assets = self._read_all()

    def path_of(self, name: str) -> str:
        """Path of a file below the base path, with its digest."""
        return f"static/{name}?v={self._assets[name].digest}"

    async def get(self, request: Request) -> Response:
        """`GET /static/...`."""
        if self._reloads:
            self._assets = self._read_all()
        asset = self._assets.get(request.path_params["asset"])
        if asset is None:
            return text_reply("NOT_FOUND", 404)
        tag = f'"{asset.digest}"'
        is_named_by_digest = request.query_params.get("v") == asset.digest
        headers = {
            "Content-Type": asset.content_type,
            "ETag": tag,
            "Cache-Control": _CACHE_FOREVER if is_named_by_digest else _CACHE_REVALIDATE,
        }
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers)

    def _read_all(self) -> dict[str, _Asset]:
        """Read all files of the folder. Raises ConfigError if that fails."""
        if not self._folder.is_dir():
            raise ConfigError(f"--dev-static-dir: {self._folder} is not a folder")
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
