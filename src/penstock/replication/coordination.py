"""What replication needs from a coordination service: one record per node, changed by compare and
swap, and one entry per running member, which disappears soon after the member has stopped.

`penstock.replication.etcd` implements it with etcd; the simulation has a version in memory. All
methods return at once, and results arrive as calls in the thread of the event loop, so that the
simulation can delay, reorder and lose them.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, Protocol

from penstock.common.errors import ReplicationError
from penstock.replication.node_record import MemberAddress, NodeRecord

__all__ = ["ClusterView", "Coordinator", "ViewListener", "WriteResult"]


class ClusterView(NamedTuple):
    """Data of the coordination service about one node. Views arrive in the order of their
    revisions."""

    record: NodeRecord | None
    """None if the node has never had a leader."""
    revision: int
    """Of the record; it grows with every change of the record. 0 if there is no record."""
    alive: dict[str, MemberAddress]
    """The running members by name."""


class WriteResult(Enum):
    """Result of a compare and swap."""

    STORED = auto()
    CONFLICT = auto()  # The record had changed: nothing was stored.
    UNKNOWN = auto()  # No answer: it may have been stored, or may still be stored later. It cannot
    # be stored any more once a view has a revision other than the expected one.


class ViewListener(Protocol):
    """Callbacks for changes and errors that the coordination service reports."""

    def on_view(self, view: ClusterView) -> None:
        """Called with a new view after a change of the record or of the set of running members, and
        after each connection."""

    def on_connection(self, *, is_connected: bool) -> None:
        """Called when the connection to the service was made or lost. Without a connection, the
        last view may be out of date."""

    def on_error(self, error: ReplicationError) -> None:
        """The service cannot be used, and waiting does not help: it rejects the user or the
        password, has lost its data, or contains a record that is invalid or written by a newer
        version. The coordinator keeps trying, and calls `on_view` if it succeeds later."""


class Coordinator(Protocol):
    """A connection to the coordination service, for one node."""

    def start(self, listener: ViewListener) -> None:
        """Start to watch. The listener gets a view soon, and then one after each change."""

    def write(
        self, record: NodeRecord, expected_revision: int, done: Callable[[WriteResult], None]
    ) -> None:
        """Store the record if the stored one has the expected revision; 0 if no record may exist.
        `done` is called with the result."""

    def announce(self, address: MemberAddress) -> None:
        """Keep an entry for this member until `close`, or replace its content. If another process
        holds the entry of the same member, wait until it has gone; `ClusterView.alive` shows whose
        entry it is."""

    async def close(self) -> None:
        """Remove the member's entry and stop."""
