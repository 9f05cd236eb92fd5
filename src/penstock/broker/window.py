"""The frames that a channel has in memory, next to be delivered.

A queue that is filled and emptied in batches: a list, and how much of it has been taken. Putting in
and taking out are then list operations, which cost next to nothing per frame; what was taken is let
go of now and then.
"""

from collections.abc import Sequence

__all__ = ["Window"]

# What was taken may be kept alive until there are so many of them, or so many bytes.
_TAKEN_MAX = 1024
_TAKEN_BYTES_MAX = 1 << 20


class Window:
    """First in, first out."""

    __slots__ = ("_frames", "_taken", "_taken_bytes", "size_bytes")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._taken = self._taken_bytes = 0
        self.size_bytes = 0  # of what is still to be taken

    def __len__(self) -> int:
        return len(self._frames) - self._taken

    def extend(self, frames: Sequence[bytes]) -> None:
        """Adds frames at the end."""
        self._frames += frames
        self.size_bytes += sum(map(len, frames))

    def take(self, count: int, bytes_max: int) -> list[bytes]:
        """Takes out the first frames: at most `count`, and no more than fit into `bytes_max`, but
        at least one."""
        frames = self._frames[self._taken : self._taken + count]
        size_bytes = sum(map(len, frames))
        if size_bytes > bytes_max:
            del frames[_count_within(frames, bytes_max) :]
            size_bytes = sum(map(len, frames))
        self._taken += len(frames)
        self._taken_bytes += size_bytes
        self.size_bytes -= size_bytes
        if self._taken == len(self._frames):
            self.clear()
        elif self._taken >= _TAKEN_MAX or self._taken_bytes >= _TAKEN_BYTES_MAX:
            del self._frames[: self._taken]
            self._taken = self._taken_bytes = 0
        return frames

    def first(self, count: int) -> list[bytes]:
        """The frames that `take` would take, and leaves there; no matter how large they are."""
        return self._frames[self._taken : self._taken + count]

    def clear(self) -> None:
        """Forgets everything."""
        self._frames = []
        self._taken = self._taken_bytes = self.size_bytes = 0


def _count_within(frames: list[bytes], bytes_max: int) -> int:
    """How many of the frames fit into `bytes_max`; at least one."""
    count = total = 0
    for frame in frames:
        total += len(frame)
        if total > bytes_max:
            break
        count += 1
    return max(count, 1)
