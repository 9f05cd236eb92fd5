"""What stands in for the log under an ephemeral topic: nothing is ever stored.

Messages are kept only while the topic holds them back (it has no channel yet, or is paused), up to
the memory queue's size; what comes beyond that is dropped. Once released they live in the channels'
windows alone.
"""

from penstock.storage import Run

__all__ = ["MemoryLog"]


class MemoryLog:
    """The part of `TopicLog` that a topic and its channels use, in memory."""

    __slots__ = ("_held", "_held_count", "_held_max", "next_seq")

    def __init__(self, first_seq: int, held_max: int) -> None:
        self.next_seq = first_seq
        self._held: list[Run] = []
        self._held_count = 0
        self._held_max = held_max

    @property
    def first_seq(self) -> int:
        """The oldest message held, or the next one to come."""
        return self._held[0].first_seq if self._held else self.next_seq

    @property
    def sync_requested_seq(self) -> int:
        """Nothing is ever to be synced."""
        return self.next_seq

    def append(self, frames: list[bytes], timestamp_ns: int, due_ns: int = 0) -> int:
        """Gives the frames their place in the sequence. Returns how many bytes they have."""
        self.next_seq += len(frames)
        return sum(map(len, frames))

    def keep(self, frames: list[bytes], due_ns: int) -> None:
        """Keeps frames just appended until they are released, as far as there is room."""
        kept = frames[: max(self._held_max - self._held_count, 0)]
        if kept:
            self._held.append(Run(self.next_seq - len(frames), kept, due_ns))
            self._held_count += len(kept)

    def read(self, seq: int) -> list[Run]:
        """What is held from `seq` on."""
        return [run for run in self._held if run.first_seq >= seq]

    @property
    def held_count(self) -> int:
        """How many messages are held."""
        return self._held_count

    def drop_kept(self) -> None:
        """Drops what is held: it has been released, or the topic was emptied."""
        self._held.clear()
        self._held_count = 0
