"""The promises to producers, consumers and readers, and the check that they are kept.

Messages are identified by the id of their log and their sequence number. A message is promised when
its publish was confirmed, or when it was below a high watermark. The progress of a channel is
promised when `Leader.when_replicated` has reported it.

Whether a member holds a message is read from its disk, not asked from the member.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tests.replication_simulation.machine import DATA_PATH, Machine, MemberProcess
from tests.simulation.violation import ViolationError

from penstock.common import names
from penstock.common.errors import CorruptBatchError
from penstock.replication.node_record import NodeRecord
from penstock.storage import TopicStore
from penstock.storage.batch import (
    SEGMENT_HEADER_BYTES,
    checksum_seed,
    complete_batches,
    maybe_segment_header,
    split_frames,
)
from penstock.storage.layout import TOPICS_NAME, maybe_segment_seq
from penstock.testing.files import _Content, _Folder

__all__ = ["ChannelPromise", "Ledger", "disk_folder", "messages_on_disk", "read_messages"]


class ChannelPromise(NamedTuple):
    """Progress of a channel that was replicated."""

    floor: int
    ranges: tuple[tuple[int, int], ...]
    leader: str
    power_losses: int
    """Of the leader, when the promise was made."""


class Ledger:
    """All promises."""

    def __init__(self, *, must_sync: bool) -> None:
        self.acked: dict[str, dict[int, bytes]] = {}
        """By log id and sequence number."""
        self.names: dict[str, str] = {}
        """The topic of each log."""
        self.trimmed: dict[str, set[int]] = {}
        self.deleted: set[str] = set()
        """Logs of topics that a leader has deleted; a takeover may undo it."""
        self.power_losses: dict[str, int] = {}
        self._must_sync = must_sync
        self._shown: dict[str, dict[int, bytes]] = {}
        self._confirmers: dict[int, str] = {}
        self._channels: dict[tuple[str, str], ChannelPromise] = {}
        self._marks: dict[tuple[str, str], int] = {}
        """The high watermark of a log that was checked last, by process."""

    # Events

    def confirm(self, process: MemberProcess, log_id: str, messages: dict[int, bytes]) -> None:
        """A publish was confirmed."""
        self._check_confirmer(process)
        if log_id in self.deleted:
            return
        shown = self._shown.get(log_id, {})
        for seq, frame in messages.items():
            if shown.get(seq) != frame:
                raise ViolationError(f"message {seq} was confirmed and is not visible")
        self.acked.setdefault(log_id, {}).update(messages)

    def trim(self, log_id: str, seqs: Iterable[int]) -> None:
        self.trimmed.setdefault(log_id, set()).update(seqs)

    def promise_channel(self, log_id: str, channel: str, promise: ChannelPromise) -> None:
        self._channels[log_id, channel] = promise

    def forget_channel(self, log_id: str, channel: str) -> None:
        self._channels.pop((log_id, channel), None)

    # Checks

    def check_new_leader(self, process: MemberProcess) -> None:
        """The leader of the current epoch has everything that was promised."""
        stores = {store.log.log_id: store for store in process.stores.values()}
        for log_id, acked in self.acked.items():
            if log_id in self.deleted:
                continue
            store = stores.get(log_id)
            found = {} if store is None else read_messages(store)
            self._check_messages(log_id, acked, found, f"{process.name}, which leads,")
        for (log_id, channel), promise in list(self._channels.items()):
            if log_id in self.deleted or log_id not in stores:
                continue
            is_own = promise.leader == process.name
            losses = self.power_losses.get(process.name, 0)
            if is_own and losses != promise.power_losses:
                # The leader fsyncs journals in the background.
                del self._channels[log_id, channel]
                continue
            self._check_channel(stores[log_id], channel, promise)

    def check_watermarks(
        self, process: MemberProcess, machines: dict[str, Machine], record: NodeRecord | None
    ) -> None:
        """Check what has become visible since the last call."""
        for topic, store in process.stores.items():
            log = store.log
            key = process.session, log.log_id
            end = log.high_watermark
            first = self._marks.setdefault(key, log.first_seq)
            if end <= first or log.log_id in self.deleted:
                continue
            self._marks[key] = end
            visible = {
                seq: frame for seq, frame in read_messages(store).items() if first <= seq < end
            }
            if visible:
                self._check_confirmer(process)
                self._check_visible(log.log_id, visible, first, end)
                self.check_holders(machines, record, topic, log.log_id, visible)

    def check_holders(
        self,
        machines: dict[str, Machine],
        record: NodeRecord | None,
        topic: str,
        log_id: str,
        messages: dict[int, bytes],
    ) -> None:
        """Every member that may take over holds these messages."""
        for each in record.in_sync if record is not None else ():
            machine = machines[each.member]
            if self.may_lead(machine, each.incarnation):
                found = messages_on_disk(machine, topic, log_id, is_synced=self._must_sync)
                self._check_messages(log_id, messages, found, f"{each.member}, which is in sync,")

    def may_lead(self, machine: Machine, incarnation: str) -> bool:
        """Whether the disk of a machine has this incarnation, and will keep it."""
        if machine.is_damaged or (machine.has_lost_power and not self._must_sync):
            return False
        return machine.incarnation == incarnation

    def check_joined(self, machine: Machine) -> None:
        """A member that was added to those in sync holds everything."""
        for log_id, acked in self.acked.items():
            if log_id not in self.deleted:
                topic = self.names[log_id]
                found = messages_on_disk(machine, topic, log_id, is_synced=self._must_sync)
                self._check_messages(log_id, acked, found, f"{machine.name}, which has joined,")
        machine.is_damaged = False

    def accept_loss(self, machine: Machine) -> None:
        """All members in sync have lost power. Whatever this one has lost may be missing."""
        for log_id in list(self.acked):
            found = messages_on_disk(machine, self.names[log_id], log_id, is_synced=False)
            for promised in (self.acked[log_id], self._shown.get(log_id, {})):
                for seq in [seq for seq in promised if seq not in found]:
                    del promised[seq]
            if not found:
                self.deleted.add(log_id)
        self._channels.clear()

    def _check_confirmer(self, process: MemberProcess) -> None:
        confirmer = self._confirmers.setdefault(process.epoch, process.session)
        if confirmer != process.session:
            raise ViolationError(f"two processes have confirmed messages in epoch {process.epoch}")

    def _check_visible(self, log_id: str, visible: dict[int, bytes], first: int, end: int) -> None:
        shown = self._shown.setdefault(log_id, {})
        for seq, frame in visible.items():
            if shown.setdefault(seq, frame) != frame:
                raise ViolationError(f"message {seq} has changed after it was visible")
        promised = {seq: frame for seq, frame in shown.items() if first <= seq < end}
        self._check_messages(log_id, promised, visible, "the leader")

    def _check_messages(
        self, log_id: str, promised: dict[int, bytes], found: dict[int, bytes], whose: str
    ) -> None:
        trimmed = self.trimmed.get(log_id, set())
        for seq, frame in promised.items():
            if seq not in found and seq not in trimmed:
                raise ViolationError(f"{whose} lacks message {seq} of {self.names[log_id]}")
            if seq in found and found[seq] != frame:
                raise ViolationError(f"{whose} has another message {seq} of {self.names[log_id]}")

    def _check_channel(self, store: TopicStore, channel: str, promise: ChannelPromise) -> None:
        progress = store.cursors.progress.get(channel)
        if progress is None:
            raise ViolationError(f"channel {channel} of {store.name} is missing after a takeover")
        for first, end in (*promise.ranges, (min(progress.floor, promise.floor), promise.floor)):
            if first < end and not progress.is_finished(first, end):
                raise ViolationError(
                    f"messages {first} to {end} were finished by {channel}, and are not any more"
                )


def read_messages(store: TopicStore) -> dict[int, bytes]:
    """All messages of a log, by sequence number."""
    found: dict[int, bytes] = {}
    seq = 0
    while runs := store.log.read(seq):
        for run in runs:
            found.update(enumerate(run.frames, run.first_seq))
        seq = runs[-1].next_seq
    return found


def disk_folder(machine: Machine, path: str, *, is_synced: bool) -> _Folder | None:
    """A folder on a disk: as processes see it, or what survives a power loss."""
    folder = machine.disk._root
    for part in path.split("/"):
        node = (folder.safe if is_synced else folder.names).get(part)
        if not isinstance(node, _Folder):
            return None
        folder = node
    return folder


def messages_on_disk(
    machine: Machine, topic: str, log_id: str, *, is_synced: bool
) -> dict[int, bytes]:
    """The valid messages of a log on the disk of a machine."""
    path = f"{DATA_PATH}/{TOPICS_NAME}/{names.file_name(topic)}"
    folder = disk_folder(machine, path, is_synced=is_synced)
    found: dict[int, bytes] = {}
    if folder is None:
        return found
    seed = checksum_seed(bytes.fromhex(log_id))
    for name, content in (folder.safe if is_synced else folder.names).items():
        if maybe_segment_seq(name) is None or not isinstance(content, _Content):
            continue
        data = bytes(content.safe if is_synced else content.seen)
        header = maybe_segment_header(data)
        if header is None or header.log_id.hex() != log_id:
            continue
        try:
            for batch in complete_batches(data[SEGMENT_HEADER_BYTES:], SEGMENT_HEADER_BYTES, seed):
                frames = split_frames(batch.header, batch.frames)
                found.update(enumerate(frames, batch.header.first_seq))
        except CorruptBatchError:
            continue
    return found
