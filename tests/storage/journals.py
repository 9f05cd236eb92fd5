"""Cursors to write, and what another process finds of them."""

from penstock.storage import Cursors, Issue
from penstock.storage.files import FilePool, Files

__all__ = ["journal_names", "new_cursors", "reloaded"]


def new_cursors(files: Files) -> Cursors:
    return Cursors(FilePool(files, 8), "data")


def reloaded(files: Files, *, is_synced: bool = True) -> tuple[Cursors, list[Issue]]:
    """What another process finds."""
    cursors = new_cursors(files)
    return cursors, cursors.load(is_synced=is_synced)


def journal_names(files: Files) -> list[str]:
    return files.names("data")
