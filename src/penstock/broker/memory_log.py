"""The log of an ephemeral topic: keeps messages in memory while the topic holds them back.

A topic without channels, or a paused one, keeps up to --mem-queue-size messages; further ones are
dropped. Released messages are only in the queues of the channels.
"""

from penstock.storage import Run

__all__ = ["MemoryLog"]


class MemoryLog:
    """The methods of `TopicLog` that a topic and its channels use, in memory."""

    __slots__ = ("_held", "_held_count", "_held_max", "next_seq")

    def __init__(self, first_seq: int, held_max: int) -> None:
        self.next_seq = first_seq
        self._held: list[Run] = []
        self._held_count = 0
        self._held_max = held_max

    @property
    def first_seq(self) -> int:
        """The oldest message kept, or the next one to be published."""
        return self._held[0].first_seq if self._held else self.next_seq

    @property
    def high_watermark(self) -> int:
        """All messages may be delivered."""
        return self.next_seq

    @property
    def latest_seq(self) -> int:
        """The number at which a channel for only new messages starts."""
        return self.next_seq

    @property
    def sync_requested_seq(self) -> int:
        """The end of the log: a log in memory needs no fsync."""
        return self.next_seq

    def append(self, frames: list[bytes], timestamp_ns: int, due_ns: int = 0) -> int:
        """Assigns sequence numbers. Returns the size of the frames."""
        self.next_seq += len(frames)
        return sum(map(len, frames))

    def keep(self, frames: list[bytes], due_ns: int) -> None:
        """Keeps frames just appended, as far as there is room."""
        kept = frames[: max(self._held_max - self._held_count, 0)]
        if kept:
            self._held.append(Run(self.next_seq - len(frames), kept, due_ns))
            self._held_count += len(kept)

    def read(self, seq: int) -> list[Run]:
        """The messages kept, from `seq` on."""
        return [run for run in self._held if run.first_seq >= seq]

    @property
    def held_count(self) -> int:
        """Number of messages kept."""
        return self._held_count

    def drop_kept(self) -> None:
        """Drops all messages, after they were released or the topic was emptied."""
        self._held.clear()
        self._held_count = 0
