"""Deliberate bugs, each of which breaks one rule of replication. The simulation must find each."""

from typing import Any

import msgspec
from tests.planted_bugs import Mutation
from tests.replication_simulation.campaign import first_failure
from tests.replication_simulation.machine import MemberProcess

from penstock.replication import leader, member
from penstock.replication.catch_up import CatchUp
from penstock.replication.copied_data_path import CopiedDataPath
from penstock.replication.follower import Follower
from penstock.replication.leader import FollowerLink, Leader
from penstock.replication.node_record import NodeRecord
from penstock.replication.stream import Ack, SegmentState
from penstock.testing.coordination import MemoryCoordination

__all__ = ["MUTATIONS", "SEEDS_MAX", "Mutation", "seeds_until_found"]

# Each bug must be found within this number of schedules.
SEEDS_MAX = 2000


def seeds_until_found(name: str) -> int | None:
    """The first seed whose schedule fails with this bug, or None."""
    mutation = next(each for each in MUTATIONS if each.name == name)
    with mutation.active():
        return first_failure(range(SEEDS_MAX))


def _does_nothing(_right: Any) -> Any:
    return lambda *_args, **_kwargs: None


def _acknowledges_first(right: Any) -> Any:
    def on_message(self: Follower, message: Any) -> None:
        if self.epoch and not self.is_stopped:
            self._connection.send(Ack(self.position + 1))
        right(self, message)

    return on_message


def _acknowledges_without_fsync(_right: Any) -> Any:
    def on_read_end(self: Follower) -> None:
        if not self.is_stopped:
            self._acknowledge(self.position)

    return on_read_end


def _ignores_a_follower(right: Any) -> Any:
    def required(self: Leader) -> frozenset[str]:
        found = sorted(right(self))
        return frozenset(found[1:] if len(found) > 1 else found)

    return required


def _removes_before_the_answer(right: Any) -> Any:
    def write_record(self: Leader, record: NodeRecord) -> None:
        right(self, record)
        self.record = record
        self.update_all_watermarks()

    return write_record


def _joins_too_early(_right: Any) -> Any:
    def can_join(self: Leader, link: FollowerLink) -> bool:
        return (
            link.is_streaming
            and link.member in self.record.members
            and not self.record.is_in_sync(link.member, link.incarnation)
        )

    return can_join


def _forgets_joining(right: Any) -> Any:
    def required(self: Leader) -> frozenset[str]:
        return frozenset(right(self) & self.record.in_sync_members)

    return required


def _claims_not_in_sync(_right: Any) -> Any:
    return lambda _record, _member, _incarnation: True


def _ignores_incarnations(_right: Any) -> Any:
    def is_in_sync(self: NodeRecord, name: str, _incarnation: str) -> bool:
        return name in self.in_sync_members

    return is_in_sync


def _same_epoch(_right: Any) -> Any:
    def claim(record: NodeRecord, name: str, _incarnation: str) -> NodeRecord:
        return msgspec.structs.replace(record, leader=name, epoch=max(record.epoch, 2))

    return claim


def _cuts_nothing(right: Any) -> Any:
    def compare(leading: list[SegmentState], following: list[SegmentState]) -> CatchUp:
        return right(leading, following)._replace(cuts=[])  # type: ignore[no-any-return]

    return compare


def _ignores_epochs_of_segments(right: Any) -> Any:
    def compare(leading: list[SegmentState], following: list[SegmentState]) -> CatchUp:
        epochs = {each.first_seq: each.epoch for each in leading}
        same = [
            msgspec.structs.replace(each, epoch=epochs.get(each.first_seq, each.epoch))
            for each in following
        ]
        return right(leading, same)  # type: ignore[no-any-return]

    return compare


def _accepts_any_position(_right: Any) -> Any:
    def append_batches(self: CopiedDataPath, message: Any) -> None:
        topic = self._topic(message.topic)
        segment = topic.segments.get(message.first_seq)
        end = 0 if segment is None else segment.end
        if message.position > end:
            return
        _append_batches(self, message)

    return append_batches


_append_batches = CopiedDataPath.__dict__["_append_batches"]


def _keeps_the_incarnation(_right: Any) -> Any:
    def renew(self: MemberProcess, stored: Any, _format_file: Any) -> Any:
        self._copy = CopiedDataPath.open("data", self._files, lambda _: None)
        return stored

    return renew


def _starts_at_its_own_end(right: Any) -> Any:
    def start(self: Leader) -> None:
        for topic in self.topics.values():
            topic.store.log.set_high_watermark(topic.store.log.next_seq)
        right(self)

    return start


def _appends_to_another_generation(right: Any) -> Any:
    def append(self: CopiedDataPath, message: Any) -> None:
        topic = self._topic(message.topic)
        if topic.journal is not None and topic.generation != message.generation:
            message = msgspec.structs.replace(
                message, generation=topic.generation, position=topic.journal_end
            )
        right(self, message)

    return append


def _counts_everything_as_confirmed(right: Any) -> Any:
    def compare(leading: list[SegmentState], following: list[SegmentState]) -> CatchUp:
        found = right(leading, following)
        end = leading[-1].next_seq if leading else found.confirmed_seq
        return found._replace(confirmed_seq=end)  # type: ignore[no-any-return]

    return compare


def _writes_without_comparing(right: Any) -> Any:
    def swap(self: MemoryCoordination, record: NodeRecord, _expected_revision: int) -> bool:
        return right(self, record, self.revision)  # type: ignore[no-any-return]

    return swap


def _confirms_after_stopping(_right: Any) -> Any:
    def stop(self: Leader) -> None:
        for topic in self.topics.values():
            topic.store.log.set_high_watermark(topic.store.log.next_seq)
            while topic.waiters:
                topic.waiters.popleft().done(None)
        self.is_stopped = True

    return stop


def _counts_sent_as_confirmed(_right: Any) -> Any:
    def note(self: FollowerLink, topic: Any, next_seq: int) -> None:
        self.confirmed[topic] = next_seq
        self._leader.update_watermark(topic)

    return note


def _keeps_incomplete_end(_right: Any) -> Any:
    return lambda self: self.topics()


def _barrier_ignores_unsent(_right: Any) -> Any:
    return lambda _barrier, links: all(link is None or link.is_streaming for link in links)


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("follower acknowledges before writing", Follower, "on_message", _acknowledges_first),
    Mutation(
        "follower acknowledges before the fsync",
        Follower,
        "on_read_end",
        _acknowledges_without_fsync,
    ),
    Mutation("leader ignores a follower in sync", Leader, "required", _ignores_a_follower),
    Mutation(
        "leader confirms before etcd has removed a follower",
        Leader,
        "_write_record",
        _removes_before_the_answer,
    ),
    Mutation("follower joins before it has caught up", Leader, "_can_join", _joins_too_early),
    Mutation("follower that joins does not count yet", Leader, "required", _forgets_joining),
    Mutation("member claims without being in sync", NodeRecord, "is_in_sync", _claims_not_in_sync),
    Mutation(
        "member claims with an old incarnation", NodeRecord, "is_in_sync", _ignores_incarnations
    ),
    Mutation("new leader uses the same epoch", member, "claim_leadership", _same_epoch),
    Mutation("nothing is cut at a rejoin", leader, "compare_segments", _cuts_nothing),
    Mutation(
        "segments are compared by length only",
        leader,
        "compare_segments",
        _ignores_epochs_of_segments,
    ),
    Mutation("follower skips bytes", CopiedDataPath, "_append_batches", _accepts_any_position),
    Mutation(
        "power loss keeps the incarnation",
        MemberProcess,
        "renew_incarnation",
        _keeps_the_incarnation,
    ),
    Mutation("high watermark starts at the leader's end", Leader, "start", _starts_at_its_own_end),
    Mutation(
        "journal of another generation is appended",
        CopiedDataPath,
        "_append_journal",
        _appends_to_another_generation,
    ),
    Mutation(
        "follower counts as complete when it connects",
        leader,
        "compare_segments",
        _counts_everything_as_confirmed,
    ),
    Mutation("sent messages count as confirmed", FollowerLink, "_note", _counts_sent_as_confirmed),
    Mutation(
        "etcd stores without comparing the revision",
        MemoryCoordination,
        "swap",
        _writes_without_comparing,
    ),
    Mutation("leader that stops confirms everything", Leader, "stop", _confirms_after_stopping),
    Mutation(
        "incomplete end of an earlier connection is kept",
        CopiedDataPath,
        "start_stream",
        _keeps_incomplete_end,
    ),
    Mutation(
        "progress counts as replicated at once",
        leader._Barrier,
        "is_reached",
        _barrier_ignores_unsent,
    ),
    Mutation("removed segments stay", CopiedDataPath, "_remove_segment", _does_nothing),
    Mutation("removed topics stay", CopiedDataPath, "_remove_topic", _does_nothing),
)
