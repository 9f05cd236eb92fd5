"""Limits on connections: in total, and per address.

nsqd shares one `ConnectionLimits` between its TCP and HTTP ports; nsqlookupd limits only its TCP
port. A connection on a unix socket has no address and counts only towards the total.
"""

__all__ = ["ConnectionLimits"]


class ConnectionLimits:
    """Counts connections. A limit of 0 means no limit."""

    __slots__ = ("_by_address", "_per_address_max", "_total", "_total_max")

    def __init__(self, *, total_max: int = 0, per_address_max: int = 0) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._total = 0
        self._by_address: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Number of connections."""
        return self._total

    def rejection(self, address: str) -> str | None:
        """The error text if a connection from `address` would exceed a limit, else None."""
        if 0 < self._total_max <= self._total:
            return f"too many connections, the limit is {self._total_max}"
        count = self._by_address.get(address, 0)
        if 0 < self._per_address_max <= count:
            return f"too many connections from {address}, the limit is {self._per_address_max}"
        return None

    def add(self, address: str) -> None:
        """Count a new connection."""
        self._total += 1
        if address:
            self._by_address[address] = self._by_address.get(address, 0) + 1

    def remove(self, address: str) -> None:
        """Count a closed connection."""
        self._total -= 1
        if address:
            left = self._by_address[address] - 1
            if left:
                self._by_address[address] = left
            else:
                del self._by_address[address]
