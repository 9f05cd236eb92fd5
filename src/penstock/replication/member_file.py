"""`penstock.member`: to which node of which cluster a data path belongs, and its incarnation.

The file is JSON, in the data path. A member that has never joined has none.
"""

import contextlib

import msgspec

from penstock.common.errors import DataPathError
from penstock.storage.files import Files, replace_file
from penstock.storage.layout import NEW_SUFFIX

__all__ = ["MEMBER_NAME", "MemberFile", "read_member_file", "write_member_file"]

MEMBER_NAME = "penstock.member"


class MemberFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `penstock.member`."""

    cluster: str
    node: str
    node_uuid: str
    member: str
    incarnation: str
    """Random; a new one is chosen if the copy may have lost writes."""


def read_member_file(files: Files, folder: str) -> MemberFile | None:
    """Read `penstock.member` in a data path; None if it does not exist. Raises DataPathError."""
    path = f"{folder}/{MEMBER_NAME}"
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            return msgspec.json.decode(file.read(0, file.size()), type=MemberFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise DataPathError(f"cannot read {path}: {error}") from error


def write_member_file(files: Files, folder: str, content: MemberFile) -> None:
    """Replace the file atomically. Raises OSError."""
    path = f"{folder}/{MEMBER_NAME}"
    replace_file(files, path, path + NEW_SUFFIX, msgspec.json.encode(content))
