"""Open files, bounded in number however many topics there are.

A `Handle` stands for a file that is open while it is used and may be closed in between; it opens
itself again. When too many are open, the one opened longest ago is closed. That need not be the one
used longest ago, but keeping track of use would cost every append something, and a busy file that
is closed in vain costs one more open for every `open_max` others.
"""

from penstock.storage.background_removal import ImmediateRemover, Remover
from penstock.storage.files import File, Files, Mode

__all__ = ["FilePool", "Handle"]


class Handle:
    """A file by its path. `file` is the open file or None: use `handle.file or handle.open()`."""

    __slots__ = ("_is_leaving", "_pins", "_pool", "file", "path")

    def __init__(self, pool: "FilePool", path: str) -> None:
        self.path = path
        self.file: File | None = None
        self._pool = pool
        self._pins = 0
        self._is_leaving = False

    @property
    def is_pinned(self) -> bool:
        """Whether another thread may be using the file."""
        return self._pins > 0

    def open(self) -> File:
        """The file, opened if it is not."""
        if self.file is None:
            self.file = self._pool.admit(self, "write")
        return self.file

    def create(self) -> File:
        """The file, which must not be there yet."""
        self.file = self._pool.admit(self, "create")
        return self.file

    def pin(self) -> File:
        """The file, which stays open until `unpin`, so that another thread may use it."""
        file = self.open()
        self._pins += 1
        return file

    def unpin(self) -> None:
        """Takes one `pin` back."""
        self._pins -= 1
        if self._is_leaving:
            self.close()

    def close(self) -> None:
        """Closes the file, now or when the last pin is taken back."""
        self._is_leaving = self.is_pinned
        if self.file is not None and not self.is_pinned:
            self._pool.dismiss(self)


class FilePool:
    """The handles that are open now, the one opened longest ago first."""

    def __init__(self, files: Files, open_max: int, remover: Remover | None = None) -> None:
        """`remover` removes trimmed segments; by default they are removed at once."""
        self.files = files
        self.remover = remover or ImmediateRemover(files)
        self._open_max = open_max
        self._open: dict[Handle, None] = {}

    def __len__(self) -> int:
        """How many files are open."""
        return len(self._open)

    def handle(self, path: str) -> Handle:
        """A handle for a file, which is not opened yet."""
        return Handle(self, path)

    def admit(self, handle: Handle, mode: Mode) -> File:
        """Opens a handle's file, and closes another if there would be too many."""
        if len(self._open) >= self._open_max:
            self._dismiss_oldest()
        file = self.files.open(handle.path, mode)
        self._open[handle] = None
        return file

    def dismiss(self, handle: Handle) -> None:
        """Closes a handle's file."""
        assert handle.file is not None
        del self._open[handle]
        handle.file.close()
        handle.file = None

    def _dismiss_oldest(self) -> None:
        oldest = next((handle for handle in self._open if not handle.is_pinned), None)
        if oldest is not None:
            self.dismiss(oldest)
