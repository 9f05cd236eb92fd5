"""Removal of files, which takes tens of milliseconds for each large file.

nsqd removes files in a thread (`BackgroundRemover`), so that trimming a log or deleting a topic
does not block the event loop. Before the removal, the log drops the segment, or the topic's folder
is renamed: if the process ends first, the next start finds the remaining files and removes them.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.common.errors import StorageError
from penstock.storage.files import Files, storage_error

__all__ = ["BackgroundRemover", "ImmediateRemover", "Remover"]

# Delay before a failed removal is retried.
RETRY_SECONDS = 10.0


class Remover(Protocol):
    """Removes files that are no longer needed. Missing files are ignored."""

    def remove(self, path: str) -> None:
        """Removes a file."""

    def remove_folder(self, path: str) -> None:
        """Removes a folder with the files in it."""

    def close(self) -> None:
        """Stops removing; the next start removes the remaining files."""


class ImmediateRemover:
    """Removes files before it returns, and raises OSError if it cannot."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in self._files.names(path):
                self._files.remove(f"{path}/{name}")
            self._files.remove(path)

    def close(self) -> None:
        pass


class _Removal(NamedTuple):
    run: Callable[[str], None]
    path: str


class BackgroundRemover:
    """Removes files in a thread, one after the other. If one cannot be removed, `on_failure` is
    called in that thread, and the removal is retried later."""

    def __init__(self, files: Files, on_failure: Callable[[StorageError], object]) -> None:
        self._remover = ImmediateRemover(files)
        self._on_failure = on_failure
        self._removals: queue.SimpleQueue[_Removal | None] = queue.SimpleQueue()
        self._failed: list[_Removal] = []
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def remove(self, path: str) -> None:
        self._add(_Removal(self._remover.remove, path))

    def remove_folder(self, path: str) -> None:
        self._add(_Removal(self._remover.remove_folder, path))

    def close(self) -> None:
        """Ends the thread after the removal in progress."""
        if self._thread is not None:
            self._is_closing = True
            self._removals.put(None)
            self._thread.join()

    def _add(self, removal: _Removal) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="remover", daemon=True)
            self._thread.start()
        self._removals.put(removal)

    # In the thread

    def _work(self) -> None:
        while not self._is_closing:
            try:
                removal = self._removals.get(timeout=RETRY_SECONDS if self._failed else None)
            except queue.Empty:
                failed, self._failed = self._failed, []
                for removal in failed:
                    self._try(removal)
            else:
                if removal is not None:
                    self._try(removal)

    def _try(self, removal: _Removal) -> None:
        try:
            removal.run(removal.path)
        except OSError as error:
            self._failed.append(removal)
            self._on_failure(storage_error("remove", removal.path, error))
