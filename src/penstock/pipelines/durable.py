"""Files that are whole or not there, and stay what they are after a power loss."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.common.errors import LakeError

__all__ = ["maybe_json", "remove_folder", "sync", "write_durably"]


def write_durably(path: Path, content: Any) -> None:
    """JSON, in a file that is the old one or the new one, whatever happens. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content, indent=1))
    sync(new)
    new.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """What was written to a file; what was made, renamed or removed in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def maybe_json(path: Path) -> Any:
    """None if there is no such file. Raises LakeError if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        raise LakeError(f"cannot read {path}: {failure}") from None


def remove_folder(folder: Path) -> None:
    """With all that is in it, if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
