"""Compares the state of a restarted node with the guarantees of the last process.

The model then adopts the state that was found, because the guarantees allow more than one:

- After a clean stop, the state is unchanged.
- After a crash, acknowledged messages are stored, and finished messages stay finished, except
  those whose FIN was too recent to be in the journal.
- After a power loss, synced messages are stored, and messages whose FIN was synced stay finished.

Messages that were being stored at the crash may be stored or not. If an operator's request failed,
or got no response, its effect may be there or not.
"""

from enum import Enum
from typing import TYPE_CHECKING

from tests.simulation.model import LONG_AGO, Entry, ModelChannel, ModelTopic, Stored
from tests.simulation.violation import ViolationError

from penstock.broker.channel import Channel
from penstock.broker.topic import Topic
from penstock.protocol import frames as wire
from penstock.storage import TopicLog

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["End", "adopt", "check_recovered_state"]

_SEQ_MASK = (1 << 54) - 1
_ALL = 100_000


class End(Enum):
    """How a process ended."""

    CLEAN = "a clean stop"
    KILL = "a crash"
    POWER = "a power loss"


def check_recovered_state(world: "World", end: End) -> None:
    """Compare all topics of a new process with those of the last one."""
    broker = world.node.broker
    before, world.topics = world.topics, {}
    ghosts, world.ghosts = world.ghosts, {}
    for name, topic in before.items():
        real = broker.topics.get(name)
        if real is not None:
            world.topics[name] = adopt(world, topic, real, end)
        elif not topic.ephemeral:
            _check_missing(world, topic, end)
    for name, real in broker.topics.items():
        if name in before:
            continue
        if name in ghosts:
            world.topics[name] = adopt(world, ghosts[name], real, end)
        else:
            world.topics[name] = _adopt_unknown(world, real)
    if any(finding.is_damage for finding in broker.issues) and end is not End.POWER:
        raise ViolationError(f"{end.value} has damaged a log: {broker.issues[0]}")


def adopt(world: "World", topic: ModelTopic, real: Topic, end: End) -> ModelTopic:
    """The model of a topic as it was found; raises ViolationError if the guarantees do not allow
    it.
    """
    return _Adoption(world, topic, real, end).model


def _check_missing(world: "World", topic: ModelTopic, end: End) -> None:
    if topic.is_unsure:
        return
    if end is not End.POWER:
        raise ViolationError(f"topic {topic.name} is gone after {end.value}")
    for message in topic.messages.values():
        if _is_safe(world, message) and topic.is_needed(message):
            raise ViolationError(f"{message.body!r} is lost with its topic after {end.value}")


def _adopt_unknown(world: "World", real: Topic) -> ModelTopic:
    """A topic that was being created or deleted when the process ended."""
    assert isinstance(real.log, TopicLog)
    if real.log.read(real.log.first_seq):
        raise ViolationError(f"topic {real.name} was deleted, and is back with its messages")
    model = ModelTopic(real, world.now_ns)
    model.keeps_all = world.setup.retention_time_ns is not None
    model.paused = real.paused
    for name, channel in real.channels.items():
        model.channels[name] = ModelChannel(model, name, world.now_ns, lambda _: None)
        model.channels[name].paused = channel.paused
        model.channels[name].committing = channel.committing
    return model


def _is_safe(world: "World", message: Stored) -> bool:
    """Whether a power loss must not lose it."""
    is_synced = message.acknowledged and world.setup.sync_every == 1
    return is_synced or world.is_safe(message.stored_ns)


class _Adoption:
    """One topic, before and after a restart."""

    def __init__(self, world: "World", topic: ModelTopic, real: Topic, end: End) -> None:
        self._world = world
        self._topic = topic
        self._real = real
        self._end = end
        self._is_loose = topic.is_unsure or (
            end is End.POWER and not world.is_safe(topic.changed_ns)
        )
        """Whether the channels may have the state of different moments."""
        if topic.channels and all(each.ephemeral for each in topic.channels.values()):
            self._is_loose = True  # the cursors of their channels were not saved
        self._storing = dict(topic.storing)
        self._logged = self._read_log()
        self.model = self._begin()
        self._check_log()
        self._check_held()
        self._check_channels()

    def _read_log(self) -> dict[int, Stored]:
        log = self._real.log
        assert isinstance(log, TopicLog)
        found: dict[int, Stored] = {}
        seq = log.first_seq
        while runs := log.read(seq):
            for run in runs:
                for at, frame in enumerate(run.frames, run.first_seq):
                    found[at] = Stored(at, wire.body(frame), run.due_ns, self._world.now_ns)
            seq = runs[-1].next_seq
        return found

    def _begin(self) -> ModelTopic:
        topic, real, world = self._topic, self._real, self._world
        model = ModelTopic(real, world.now_ns)
        model.keeps_all = world.setup.retention_time_ns is not None or real.retention is not None
        model.paused = real.paused
        # A channel whose deletion was interrupted has been created again.
        changed_ns = world.now_ns if topic.is_unsure else topic.changed_ns
        model.changed_ns = self._renewed(changed_ns)
        if real.paused != topic.paused and not self._is_loose:
            raise ViolationError(f"{topic.name} is paused: {real.paused}, expected {topic.paused}")
        if real.log.next_seq <= world.last_seqs.get(topic.name, -1) and not world.wall_went_back:
            raise ViolationError(
                f"{topic.name} would reuse sequence numbers after {self._end.value}"
            )
        world.last_seqs[topic.name] = real.log.next_seq - 1
        return model

    def _renewed(self, at_ns: int) -> int:
        """When a change counts as saved: now after a clean stop, otherwise unchanged."""
        if self._end is End.CLEAN or at_ns == LONG_AGO or self._world.is_safe(at_ns):
            return LONG_AGO
        return self._world.now_ns

    # The log.

    def _check_log(self) -> None:
        topic, logged = self._topic, self._logged
        for seq, message in topic.messages.items():
            if seq not in logged:
                self._check_loss(message)
            elif logged[seq].body != message.body or logged[seq].due_ns != message.due_ns:
                raise ViolationError(f"{message.body!r} has changed in the log")
        for seq, found in logged.items():
            known = topic.messages.get(seq) or self._maybe_expected(found)
            if known is None:
                raise ViolationError(f"{found.body!r} is in the log, and was not stored")
            known.stored_ns = self._renewed(known.stored_ns)
            self.model.messages[seq] = known

    def _check_loss(self, message: Stored) -> None:
        topic = self._topic
        if topic.is_unsure or (not topic.is_needed(message) and not topic.keeps_all):
            return
        if self._end is not End.POWER or _is_safe(self._world, message):
            raise ViolationError(f"{message.body!r} is lost after {self._end.value}")
        self._world.count("power: lost writes that were not synced")

    def _maybe_expected(self, found: Stored) -> Stored | None:
        if found.body in self._storing:
            self._world.see_stored(found)
            self._world.count("crash: unacknowledged publish was stored")
            return found
        # After a power loss, a removed segment can exist again.
        is_ours = self._world.was_stored(found)
        return found if is_ours and (self._end is End.POWER or self._topic.is_unsure) else None

    # Messages held by the topic.

    def _check_held(self) -> None:
        real, topic = self._real, self._topic
        self.model.held = [
            message for seq, message in self.model.messages.items() if seq >= real.released_seq
        ]
        self.model.held_count = len(self.model.held)
        held = {message.seq for message in topic.held}
        found = {message.seq for message in self.model.held}
        self._check_held_again(found - held)
        if self._is_loose:
            return
        for seq in held - found:
            if seq in self._logged:
                raise ViolationError(
                    f"{topic.messages[seq].body!r} is no longer held by {topic.name}"
                )
        for seq in found - held:
            if self._logged[seq].body not in self._storing:
                raise ViolationError(f"{self._logged[seq].body!r} is held by {topic.name} again")

    def _check_held_again(self, seqs: set[int]) -> None:
        """They may be held again, but not long after an ephemeral channel has finished them."""
        if self._end is End.POWER or self._topic.is_unsure:
            return
        for channel in self._topic.channels.values():
            for seq in seqs & channel.closed.keys() if channel.ephemeral else ():
                entry, finished_ns = channel.closed[seq]
                if self._end is End.CLEAN or self._world.is_saved(finished_ns):
                    raise ViolationError(f"{entry.message.body!r} was finished, and is held again")

    # The channels.

    def _check_channels(self) -> None:
        before = {name: each for name, each in self._topic.channels.items() if not each.ephemeral}
        names = self._real.channels.keys()
        if before.keys() != names and not self._is_loose:
            raise ViolationError(
                f"{self._topic.name} has channels {[*names]}, expected {[*before]}"
            )
        for name, real in self._real.channels.items():
            channel = ModelChannel(self.model, name, self._world.now_ns, self._world.note_state)
            self.model.channels[name] = channel
            channel.paused, channel.committing = real.paused, real.committing
            known = before.get(name)
            if known is not None:
                self._check_channel(channel, known, real)
            else:
                self._take_as_found(channel, real)

    def _check_channel(self, channel: ModelChannel, known: ModelChannel, real: Channel) -> None:
        channel.placed_ns = self._renewed(known.placed_ns)
        if not self._world.wall_went_back:  # otherwise sequence numbers may start again below
            channel.last_first_seq = known.last_first_seq
        channel.floor, channel.skipped = known.floor, set(known.skipped)
        channel.noted = dict(known.noted)  # until the topic releases them
        if not self._is_loose and (known.paused, known.committing) != (
            real.paused,
            real.committing,
        ):
            raise ViolationError(f"{channel.name} is paused or committing, and was not, or was")
        is_loose = self._is_loose or (
            self._end is End.POWER and not self._world.is_safe(known.placed_ns)
        )
        if is_loose:
            self._take_as_found(channel, real)
            return
        self._check_open(channel, known, self._open_in(real))

    def _take_as_found(self, channel: ModelChannel, real: Channel) -> None:
        progress = real._log_queue()._progress
        channel.last_first_seq = -1
        channel.floor = progress.floor
        channel.skipped = {
            message.seq
            for message in self.model.held
            if progress.is_finished(message.seq, message.seq + 1)
        }
        channel.noted = {
            message.seq: progress.retry_states[message.seq]
            for message in self.model.held
            if message.seq in progress.retry_states
        }
        channel.message_count = real.message_count  # the topic may have released messages
        for seq, (attempts, due_ns) in self._open_in(real).items():
            if seq not in self.model.messages:
                raise ViolationError(f"{channel.name} has a message {seq} that is not stored")
            entry = Entry(self.model.messages[seq], self._world.now_ns)
            entry.remember(attempts, due_ns)
            entry.delivered = attempts > 0
            channel.open[seq] = entry

    def _open_in(self, real: Channel) -> dict[int, tuple[int, int]]:
        """Attempts and due time of the open messages, by sequence number."""
        found: dict[int, tuple[int, int]] = {}
        for waiting in (*real.peek(_ALL), *real.peek_deferred(_ALL)):
            seq = int(wire.message_id(waiting.frame), 16) & _SEQ_MASK
            if seq in found:
                raise ViolationError(f"message {seq} is in {real.name} twice")
            found[seq] = wire.attempts(waiting.frame) - 1, waiting.due_ns
        return found

    def _check_open(
        self, channel: ModelChannel, known: ModelChannel, found: dict[int, tuple[int, int]]
    ) -> None:
        for seq, entry in known.open.items():
            if seq in found:
                channel.open[seq] = self._continued(entry, *found[seq])
            elif self._must_be_open(entry):
                raise ViolationError(
                    f"{entry.message.body!r} is lost to {channel.name} after {self._end.value}"
                )
        lately = known.closed if self._end is End.POWER else known.finished
        for seq, (attempts, due_ns) in found.items():
            if seq in known.open:
                continue
            if seq in lately and self._end is not End.CLEAN:
                channel.open[seq] = self._continued(lately[seq][0], attempts, due_ns, again=True)
                self._world.count("crash: finished shortly before, open again")
            elif self._logged[seq].body in self._storing:
                channel.take([self.model.messages[seq]], self._world.now_ns, self._world.now_ns)
            else:
                raise ViolationError(
                    f"{self._logged[seq].body!r} was finished, and came back to {channel.name}"
                )
        if self._end is not End.CLEAN:
            channel.closed = {
                seq: (entry, self._world.now_ns)
                for seq, (entry, _) in known.closed.items()
                if seq not in channel.open
            }
        channel.open = dict(sorted(channel.open.items()))

    def _must_be_open(self, entry: Entry) -> bool:
        if self._end is not End.POWER:
            return True
        return (
            entry.message.seq in self._logged
            and _is_safe(self._world, entry.message)
            and self._world.is_safe(entry.since_ns)
        )

    def _continued(self, entry: Entry, attempts: int, due_ns: int, *, again: bool = False) -> Entry:
        world, end = self._world, self._end
        body = entry.message.body
        is_noted = end is End.CLEAN or (end is End.KILL and world.is_saved(entry.noted_ns))
        fewest = 0 if again or end is End.POWER else entry.noted if is_noted else entry.saved
        if end is End.CLEAN:
            fewest = entry.attempts
        most = entry.attempts
        if end is End.POWER and not world.is_safe(entry.since_ns):
            most = attempts  # attempts from before the cursor was moved
        if not fewest <= attempts <= most:
            raise ViolationError(
                f"{body!r} has {attempts} attempts after {end.value}, expected {fewest} to {most}"
            )
        # The message has timed out and is queued; the model does not know yet.
        is_back = due_ns == 0 and attempts > entry.noted and entry.may_time_out(world.now_ns)
        if is_noted and not again and due_ns != entry.due_ns and not is_back:
            raise ViolationError(f"{body!r} is due at {due_ns}, expected {entry.due_ns}")
        went_on = Entry(entry.message, self._renewed(entry.since_ns))
        went_on.remember(attempts, due_ns)
        went_on.delivered = entry.delivered
        return went_on
