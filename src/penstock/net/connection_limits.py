"""How many connections there may be: in all, and from one address.

A daemon has one `Admission` for all its ports. A peer on a unix socket has no address, and counts
towards the total alone.
"""

__all__ = ["Admission"]


class Admission:
    """Counts who is here. A limit of 0 is none."""

    __slots__ = ("_by_address", "_per_address_max", "_total", "_total_max")

    def __init__(self, *, total_max: int = 0, per_address_max: int = 0) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._total = 0
        self._by_address: dict[str, int] = {}

    @property
    def total(self) -> int:
        """How many there are."""
        return self._total

    def refusal(self, address: str) -> str | None:
        """Why nobody more may come from `address`, if that is so."""
        if 0 < self._total_max <= self._total:
            return f"too many connections, the limit is {self._total_max}"
        here = self._by_address.get(address, 0)
        if 0 < self._per_address_max <= here:
            return f"too many connections from {address}, the limit is {self._per_address_max}"
        return None

    def enter(self, address: str) -> None:
        """Somebody has come."""
        self._total += 1
        if address:
            self._by_address[address] = self._by_address.get(address, 0) + 1

    def leave(self, address: str) -> None:
        """Somebody who had come has gone."""
        self._total -= 1
        if address:
            left = self._by_address[address] - 1
            if left:
                self._by_address[address] = left
            else:
                del self._by_address[address]
