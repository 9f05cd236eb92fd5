"""Something in a data path that is not as a clean end leaves it."""

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, or what recovery found and did about it; `str` of it is one line.

    `is_damage` tells what should never happen, and may have cost messages that were acknowledged,
    from what an ordinary crash leaves behind. Positions are bytes in the file, sequence numbers
    those of the messages concerned, both `[first, end)`; None where that is not known or has no
    meaning.
    """

    path: str
    problem: str
    is_damage: bool
    first_byte: int | None = None
    end_byte: int | None = None
    first_seq: int | None = None
    end_seq: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}{self._where()}"

    def _where(self) -> str:
        parts = []
        if self.first_byte is not None and self.end_byte is not None:
            parts.append(f"bytes {self.first_byte} to {self.end_byte - 1}")
        if self.first_seq is not None and self.first_seq == self.end_seq:
            pass  # They cost no message.
        elif self.first_seq is not None and self.end_seq is not None:
            parts.append(f"messages {self.first_seq} to {self.end_seq - 1}")
        elif self.first_seq is not None:
            parts.append(f"messages {self.first_seq} and on")
        return f" ({', '.join(parts)})" if parts else ""
