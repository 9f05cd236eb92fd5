"""The node id of this nsqd, and its change if another nsqd has the same one.

In its response to IDENTIFY, Penstock's nsqlookupd lists the node ids of the other nsqds. If that of
this nsqd is among them when it first registers with this nsqlookupd, nsqd chooses a free one at
random, stores it in the data path, and registers again. If `--node-id` is given, if the data path
is replicated, or if the collision occurs later, nsqd only logs it.

The node id of a replicated data path never changes: message ids mean the same before and after a
takeover, and the other nsqd may be the former leader of the same node.

nsqlookupd reports a collision only to the second of two nsqds. If there are several nsqlookupds,
each of the two may be the second at one of them. Both then choose at random, and hardly ever the
same id.
"""

from collections.abc import Callable

from penstock.common.errors import StorageError
from penstock.common.logs import Logger
from penstock.common.node_id import NODE_IDS
from penstock.nsqd.lookup_peer import LookupdInfo
from penstock.storage import DataPath

__all__ = ["NodeId"]

# After so many changes, nsqd keeps its node id, whatever nsqlookupd reports.
CHANGES_MAX = 8


class NodeId:
    """The node id in use. `on_change` is called after it has changed."""

    def __init__(
        self,
        data_path: DataPath,
        configured: int | None,
        log: Logger,
        *,
        is_replicated: bool = False,
    ) -> None:
        """`configured` is the value of `--node-id`."""
        self.value = data_path.node_id if configured is None else configured
        self.on_change: Callable[[], None] = lambda: None
        self._data_path = data_path
        self._is_fixed = configured is not None or is_replicated
        self._log = log
        self._used: set[int] = set()
        self._changes = 0
        self._last_logged = ""

    def check(self, lookupd_address: str, info: LookupdInfo, *, is_first: bool) -> None:
        """Changes the node id, or logs a warning, if nsqlookupd reports a collision. `is_first`:
        this nsqd registers with that nsqlookupd for the first time."""
        self._used.update(node_id for node_id in info.used_node_ids if 0 <= node_id < NODE_IDS)
        if not info.node_id_used_by:
            return
        used = self._used | {self.value}
        if is_first and not self._is_fixed and len(used) < NODE_IDS and self._changes < CHANGES_MAX:
            self._change(lookupd_address, info.node_id_used_by, used)
        elif self._last_logged != info.node_id_used_by:
            self._last_logged = info.node_id_used_by
            self._log.warning(
                "LOOKUPD(%s): node id %d is also used by %s, so message ids may be equal; %s",
                lookupd_address,
                self.value,
                info.node_id_used_by,
                "set another --node-id"
                if self._is_fixed
                else "to choose another one, restart this nsqd",
            )

    def _change(self, lookupd_address: str, other: str, used: set[int]) -> None:
        self._changes += 1
        try:
            self._data_path.change_node_id(used)
        except StorageError as failure:
            self._log.error(
                "LOOKUPD(%s): node id %d is also used by %s, and cannot be changed - %s",
                lookupd_address,
                self.value,
                other,
                failure,
            )
            return
        old, self.value = self.value, self._data_path.node_id
        self._log.warning(
            "LOOKUPD(%s): node id %d is also used by %s; changed to %d",
            lookupd_address,
            old,
            other,
            self.value,
        )
        self.on_change()
