"""The journal of one topic's channels. (Signatures first; the inside is being written.)"""

from collections.abc import Sequence

from penstock.log.progress import Note, Progress

__all__ = ["Cursors"]


class Cursors:
    """What the channels of one topic have finished, kept in a journal."""

    progress: dict[str, Progress]
    held_from: int | None
    dirty: bool

    def create(self, channel: str, floor: int) -> Progress:
        raise NotImplementedError

    def remove(self, channel: str) -> None:
        raise NotImplementedError

    def reset(self, channel: str, floor: int) -> None:
        raise NotImplementedError

    def hold(self, seq: int | None) -> None:
        raise NotImplementedError

    def finish_many(self, channel: str, seqs: Sequence[int]) -> None:
        raise NotImplementedError

    def finish(self, channel: str, first: int, next: int) -> None:
        raise NotImplementedError

    def note(self, channel: str, seq: int, note: Note) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
