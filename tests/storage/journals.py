"""Helpers: cursors, and cursors loaded again from their journal."""

from penstock.storage import Cursors, Issue
from penstock.storage.files import FilePool, Files

__all__ = ["journal_names", "new_cursors", "reloaded"]


def new_cursors(files: Files) -> Cursors:
    return Cursors(FilePool(files, 8), "data")


def reloaded(files: Files, *, is_synced: bool = True) -> tuple[Cursors, list[Issue]]:
    """Load the journal as another process would."""
    cursors = new_cursors(files)
    return cursors, cursors.load(is_synced=is_synced)


def journal_names(files: Files) -> list[str]:
    return files.list_names("data")
