"""The part of a log's sync that may run in any thread."""

from penstock.storage.files import Files, storage_error
from penstock.storage.segment import Segment

__all__ = ["LogSync"]


class LogSync:
    """The fsyncs of one `begin_sync`. While it lasts, its files stay open."""

    def __init__(
        self,
        files: Files,
        path: str,
        segments: list[Segment],
        folders: list[str],
        *,
        new_names: int,
        next_seq: int,
        is_rewrite: bool,
    ) -> None:
        self.path = path
        self.parts: list[tuple[Segment, int]] = []
        """Every segment, and where the part of it ends that will be safe."""
        self._pinned: list[Segment] = []
        self.new_names = new_names
        self.next_seq = next_seq
        self._files = files
        self._folders = folders
        self._is_rewrite = is_rewrite
        for segment in segments:
            self._take(segment)

    def run(self) -> None:
        """Fsyncs the segments, then the folders with their names."""
        for segment, end in self.parts:
            if self._is_rewrite:
                segment.rewrite_unsynced(end)
            segment.handle.open().sync()
        for folder in self._folders:
            self._files.sync_folder(folder)

    def release(self) -> None:
        """Unpins the files, so that the pool may close them. Idempotent."""
        while self._pinned:
            self._pinned.pop().handle.unpin()

    def _take(self, segment: Segment) -> None:
        try:
            segment.handle.pin()
        except OSError as error:
            self.release()
            raise storage_error("open", segment.handle.path, error) from error
        self._pinned.append(segment)
        self.parts.append((segment, segment.end))
