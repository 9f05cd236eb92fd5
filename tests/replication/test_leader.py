"""A leader and its followers, connected by queues instead of sockets."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from unittest.mock import Mock

import pytest
from tests.storage.frames import WALL_NS, frames, read_all

from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS
from penstock.common.errors import (
    CorruptBatchError,
    NotInSyncError,
    ReplicationError,
    StorageError,
)
from penstock.common.logs import Logger, LogLevel
from penstock.replication.coordination import ClusterView, WriteResult
from penstock.replication.copied_data_path import CopiedDataPath, CopyFsync
from penstock.replication.follower import Follower
from penstock.replication.leader import STREAM_VERSION, FollowerLink, Leader, LeaderSettings
from penstock.replication.node_record import (
    MemberAddress,
    NodeRecord,
    add_in_sync,
    add_member,
    create_record,
)
from penstock.replication.stream import (
    Damaged,
    FollowerMessage,
    FormatSettings,
    Hello,
    LeaderMessage,
    Refuse,
    Welcome,
)
from penstock.storage import DataPath, LogSettings, TopicStore
from penstock.testing import MemoryFiles
from penstock.testing.clock import ManualClock

SMALL = LogSettings(max_bytes_per_file=230)
TIMEOUT_NS = 5 * SECOND_NS
ALONE = create_record("uuid", "a", "a1")
PAIR = add_in_sync(add_member(ALONE, "b"), "b", "b1")


def address_of(member: str) -> MemberAddress:
    return MemberAddress(
        member=member,
        incarnation=f"{member}1",
        session="s",
        broadcast_address=member,
        tcp_port=4150,
        http_port=4151,
        version="1",
    )


@dataclass
class TopicStub:
    """The part of a broker's topic that the leader uses."""

    store: TopicStore


class Node:
    """A leader on its own files."""

    def __init__(
        self,
        record: NodeRecord = PAIR,
        *,
        files: MemoryFiles | None = None,
        must_sync: bool = False,
        min_in_sync: int = 1,
        alive: str = "abc",
    ) -> None:
        self.files = files or MemoryFiles()
        if files is None:
            self.files.make_folder("data")
        self.clock = ManualClock()
        self.visible: list[str] = []
        self.damaged: list[str] = []
        self.writes: list[tuple[NodeRecord, int, Callable[[WriteResult], None]]] = []
        self.alive = {member: address_of(member) for member in alive}
        settings = LeaderSettings(
            cluster="shop",
            node="n",
            member="a",
            epoch=record.epoch,
            token="secret",
            must_sync=must_sync,
            min_in_sync=min_in_sync,
            timeout_ns=TIMEOUT_NS,
        )
        self.leader = Leader(
            settings,
            ClusterView(record, 1, self.alive),
            self.clock,
            Logger("", LogLevel.FATAL),
            write=lambda *write: self.writes.append(write),
            format_settings=lambda: FormatSettings(5, 10**15),
            on_visible=self.visible.append,
            send_soon=lambda: None,
            on_damage=self.damaged.append,
        )
        self.data_path = DataPath.open(
            "data", SMALL, self.files, epoch=record.epoch, observer=self.leader
        )
        for name in self.data_path.topics():
            self.open(name)
        self.leader.start()

    def open(self, name: str = "t") -> TopicStore:
        return self.data_path.open_topic(name, wall_ns=WALL_NS)[0]

    def publish(self, store: TopicStore, *bodies: str) -> list[StorageError | None]:
        """Publish a batch; the list gets the answer."""
        answers: list[StorageError | None] = []
        store.log.append(frames(*bodies), WALL_NS)
        topic = cast("Topic", TopicStub(store))
        self.leader.when_confirmed(topic, store.log.next_seq, answers.append)
        self.leader.send()
        return answers

    def answer_write(self, result: WriteResult, revision: int) -> NodeRecord:
        """Answer the oldest write to etcd; the view follows."""
        record, _, done = self.writes.pop(0)
        done(result)
        if result is WriteResult.STORED:
            self.leader.on_view(ClusterView(record, revision, self.alive))
        return record


class Pipe:
    """The connection of one follower, whose messages the test delivers."""

    def __init__(
        self,
        node: Node,
        member: str = "b",
        files: MemoryFiles | None = None,
        copy: CopiedDataPath | None = None,
    ) -> None:
        self.node = node
        self.files = files or MemoryFiles()
        if files is None:
            self.files.make_folder("data")
        self.to_follower: deque[LeaderMessage] = deque()
        self.to_leader: deque[FollowerMessage] = deque()
        self.fsyncs: list[tuple[CopyFsync, Callable[[OSError | None], None]]] = []
        self.failures: list[Exception] = []
        self.can_send = True
        self.is_closed = False
        self.copy = copy or CopiedDataPath.open("data", self.files, lambda _: None)
        self.link = FollowerLink(node.leader, self)
        hello = Hello("shop", "n", "uuid", member, f"{member}1", 1, "secret", STREAM_VERSION)

        class Sender:
            @staticmethod
            def send(message: FollowerMessage) -> None:
                self.to_leader.append(message)

        self.follower = Follower(
            self.copy,
            hello,
            Sender,
            lambda job, done: self.fsyncs.append((job, done)),
            self.failures.append,
        )

    def send(self, message: LeaderMessage) -> None:
        self.to_follower.append(message)

    def close(self) -> None:
        self.is_closed = True

    def run(self) -> None:
        """Deliver everything, without fsyncs."""
        while self.to_follower or self.to_leader:
            while self.to_leader:
                self.link.on_message(self.to_leader.popleft())
            self.deliver_to_follower()

    def deliver_to_follower(self) -> None:
        while self.to_follower:
            self.follower.on_message(self.to_follower.popleft())
        self.follower.on_read_end()

    def fsync(self) -> None:
        job, done = self.fsyncs.pop(0)
        job.run()
        done(None)

    def bodies(self, topic: str = "t") -> list[str]:
        """The messages in the follower's copy, after a takeover."""
        self.copy.close()
        data_path = DataPath.open("data", SMALL, self.files)
        found = read_all(data_path.open_topic(topic, wall_ns=WALL_NS)[0].log)
        data_path.close()
        return found


def connected(node: Node, member: str = "b", files: MemoryFiles | None = None) -> Pipe:
    pipe = Pipe(node, member, files)
    pipe.run()
    return pipe


class TestConfirmation:
    def test_message_is_confirmed_when_the_follower_has_it(self) -> None:
        node = Node()
        pipe = connected(node)
        store = node.open()
        answers = node.publish(store, "a", "b")

        assert ([], store.log.first_seq) == (answers, store.log.high_watermark)
        pipe.run()
        assert ([None], store.log.next_seq) == (answers, store.log.high_watermark)
        assert ["t"] == node.visible
        assert ["a", "b"] == pipe.bodies()

    def test_leader_alone_confirms_at_the_end_of_the_turn(self) -> None:
        node = Node(ALONE)

        assert [None] == node.publish(node.open(), "a")

    def test_slowest_follower_decides(self) -> None:
        node = Node(add_in_sync(add_member(PAIR, "c"), "c", "c1"))
        first, second = connected(node, "b"), connected(node, "c")
        answers = node.publish(node.open(), "a")
        first.run()
        assert [] == answers

        second.run()
        assert [None] == answers

    def test_follower_that_is_not_in_sync_is_not_waited_for(self) -> None:
        node = Node(add_member(ALONE, "b"))
        connected(node)

        assert [None] == node.publish(node.open(), "a")

    def test_disconnected_follower_is_waited_for_until_etcd_has_removed_it(self) -> None:
        node = Node()
        pipe = connected(node)
        store = node.open()
        pipe.run()
        pipe.link.on_closed()
        answers = node.publish(store, "a")
        node.leader.tick()
        assert ([], []) == (answers, node.writes)

        node.clock.advance(TIMEOUT_NS)
        node.leader.tick()
        assert frozenset({"a"}) == node.writes[0][0].in_sync_members
        assert [] == answers
        node.answer_write(WriteResult.STORED, 2)
        assert [None] == answers

    @pytest.mark.parametrize("result", [WriteResult.CONFLICT, WriteResult.UNKNOWN])
    def test_removal_that_was_not_stored_confirms_nothing(self, result: WriteResult) -> None:
        node = Node(alive="ac")
        answers = node.publish(node.open(), "a")
        node.leader.tick()
        node.answer_write(result, 2)

        assert [] == answers

    def test_member_that_is_not_running_is_removed_at_once(self) -> None:
        node = Node(alive="a")
        node.leader.tick()

        assert frozenset({"a"}) == node.writes[0][0].in_sync_members

    def test_running_follower_is_not_removed_if_too_few_members_remain(self) -> None:
        node = Node(min_in_sync=2)
        pipe = connected(node)
        store = node.open()
        pipe.run()
        answers = node.publish(store, "a")
        node.clock.advance(TIMEOUT_NS)
        node.leader.tick()
        assert [] == node.writes
        with pytest.raises(NotInSyncError, match="1 of 2 members are in sync; 2 are needed"):
            node.leader.check_writable()

        pipe.run()
        node.leader.tick()
        node.leader.check_writable()
        assert [None] == answers

    def test_follower_that_has_gone_is_removed_although_too_few_members_remain(self) -> None:
        node = Node(add_in_sync(add_member(PAIR, "c"), "c", "c1"), min_in_sync=3, alive="ac")
        connected(node, "c")
        node.leader.tick()

        assert frozenset({"a", "c"}) == node.writes[0][0].in_sync_members

    def test_running_followers_are_not_removed_by_a_leader_that_hears_nobody(self) -> None:
        node = Node(add_in_sync(add_member(PAIR, "c"), "c", "c1"), min_in_sync=2)
        connected(node, "b"), connected(node, "c")
        node.publish(node.open(), "a")
        node.clock.advance(10 * TIMEOUT_NS)
        node.leader.tick()

        assert [] == node.writes

    def test_follower_that_connects_again_stays_late_until_it_has_caught_up(self) -> None:
        node = Node(min_in_sync=2)
        pipe = connected(node)
        store = node.open()
        node.publish(store, "a")
        node.clock.advance(TIMEOUT_NS)
        node.leader.tick()
        pipe.link.on_closed()
        pipe.copy.close()

        again = Pipe(node, files=pipe.files)
        while again.to_leader:
            again.link.on_message(again.to_leader.popleft())
        node.leader.tick()
        with pytest.raises(NotInSyncError):
            node.leader.check_writable()

        again.run()
        node.leader.tick()
        node.leader.check_writable()

    def test_publishes_are_refused_if_nobody_answers(self) -> None:
        node = Node()
        answers = node.publish(node.open(), "a")
        node.clock.advance(2 * TIMEOUT_NS + 1)
        node.leader.tick()

        assert isinstance(answers[0], NotInSyncError)

    def test_follower_of_another_incarnation_is_late(self) -> None:
        node = Node(add_in_sync(PAIR, "b", "b2"))
        connected(node)
        node.leader.tick()
        node.clock.advance(TIMEOUT_NS)
        node.leader.tick()

        assert not node.writes[0][0].is_in_sync("b", "b2")

    def test_stopped_leader_confirms_nothing(self) -> None:
        node = Node()
        pipe = connected(node)
        store = node.open()
        answers = node.publish(store, "a")
        node.leader.stop()
        assert pipe.is_closed
        assert isinstance(answers[0], NotInSyncError)
        with pytest.raises(NotInSyncError):
            node.leader.check_writable()

        pipe.is_closed = False
        pipe.run()
        assert store.log.first_seq == store.log.high_watermark

    def test_messages_of_a_deleted_topic_are_refused(self) -> None:
        node = Node()
        answers = node.publish(node.open(), "a")
        node.data_path.remove_topic("t")

        assert ["topic t was deleted"] == [str(answer) for answer in answers]


class TestMinimum:
    def test_journal_that_was_given_up_is_sent_after_its_next_generation(self) -> None:
        node = Node()
        pipe = connected(node)
        store = node.open()
        job = store.cursors.begin_sync()
        store.cursors.end_sync(job, StorageError("the fsync has failed"))
        node.leader.send()
        pipe.run()
        assert not pipe.copy.topics()[0].journal

        store.cursors.create("c", store.log.next_seq)
        node.leader.send()
        pipe.run()
        assert pipe.copy.topics()[0].journal

    def test_publishes_are_refused_below_the_minimum(self) -> None:
        node = Node(ALONE, min_in_sync=2)
        with pytest.raises(NotInSyncError, match="1 of 1 members are in sync; 2 are needed"):
            node.leader.check_writable()

        Node(PAIR, min_in_sync=2).leader.check_writable()

    def test_message_with_too_few_copies_is_not_confirmed(self) -> None:
        node = Node(min_in_sync=2, alive="a")
        store = node.open()
        answers = node.publish(store, "a")
        node.leader.tick()
        node.answer_write(WriteResult.STORED, 2)

        assert ([], store.log.first_seq) == (answers, store.log.high_watermark)

    def test_messages_of_earlier_runs_stay_visible(self) -> None:
        node = Node(ALONE)
        node.publish(node.open(), "a")
        node.data_path.close()
        again = Node(ALONE, files=node.files, min_in_sync=2)

        assert again.leader.topics["t"].store.log.high_watermark > 0
        assert ["t"] == again.visible


class TestSyncing:
    def test_message_is_confirmed_after_the_fsyncs_of_both(self) -> None:
        node = Node(must_sync=True)
        pipe = connected(node)
        store = node.open()
        pipe.run()
        while pipe.fsyncs:
            pipe.fsync()
        answers = node.publish(store, "a")
        pipe.run()
        assert [] == answers

        pipe.fsync()
        pipe.run()
        assert [] == answers
        store.log.sync()
        node.leader.synced(cast("Topic", TopicStub(store)))
        assert [None] == answers

    def test_follower_that_reconnects_is_not_believed_before_its_fsync(self) -> None:
        node = Node(must_sync=True)
        store = node.open()
        store.log.append(frames("a"), WALL_NS)
        store.log.sync()
        pipe = connected(node)
        while pipe.fsyncs:
            pipe.fsync()
            pipe.run()
        assert store.log.next_seq == store.log.high_watermark

        node.data_path.close()
        pipe.copy.abandon()
        again = Node(must_sync=True, files=node.files)
        reconnected = connected(again, files=pipe.files)
        log = again.leader.topics["t"].store.log
        assert log.first_seq == log.high_watermark
        reconnected.fsync()
        reconnected.run()
        assert log.next_seq == log.high_watermark

    def test_failed_fsync_is_not_acknowledged(self) -> None:
        node = Node(must_sync=True)
        pipe = connected(node)
        _, done = pipe.fsyncs.pop(0)
        done(OSError(5, "Input/output error"))

        assert 1 == len(pipe.failures)
        assert 0 == pipe.follower.acked_position


class TestCatchingUp:
    def filled(self) -> Node:
        node = Node(ALONE)
        store = node.open()
        for body in "abcdefgh":
            node.publish(store, body)
        store.cursors.create("c", store.log.first_seq)
        node.leader.metadata_written(b"{}")
        return node

    def test_new_follower_gets_everything(self) -> None:
        node = self.filled()
        pipe = connected(node)

        assert pipe.link.has_everything
        assert list("abcdefgh") == pipe.bodies()

    def test_follower_joins_when_it_has_caught_up(self) -> None:
        node = self.filled()
        node.leader.on_view(ClusterView(add_member(ALONE, "b"), 2, node.alive))
        pipe = Pipe(node)
        node.leader.tick()
        assert [] == node.writes

        pipe.run()
        node.leader.tick()
        record, revision, _ = node.writes[0]
        assert (frozenset({"a", "b"}), 2) == (record.in_sync_members, revision)

    def test_joining_follower_is_waited_for_before_etcd_answers(self) -> None:
        node = self.filled()
        node.leader.on_view(ClusterView(add_member(ALONE, "b"), 2, node.alive))
        pipe = connected(node)
        node.leader.tick()
        answers = node.publish(node.leader.topics["t"].store, "i")
        assert [] == answers

        pipe.run()
        assert [None] == answers
        node.answer_write(WriteResult.STORED, 3)
        assert frozenset({"b"}) == node.leader.required

    def test_joining_follower_is_waited_for_if_etcd_does_not_answer(self) -> None:
        """The write may still be executed while another follower joins."""
        node = Node(add_member(add_member(ALONE, "b"), "c"))
        first, second = connected(node, "b"), connected(node, "c")
        node.leader.tick()
        node.answer_write(WriteResult.UNKNOWN, 2)
        first.link.on_closed()
        node.leader.tick()
        assert frozenset({"a", "c"}) == node.writes[0][0].in_sync_members
        answers = node.publish(node.open(), "a")
        second.run()

        assert [] == answers
        assert frozenset({"b", "c"}) == node.leader.required

    def joining(self) -> tuple[Node, Pipe]:
        """A leader that has asked etcd to add b, and got no answer."""
        node = self.filled()
        both = add_member(add_member(ALONE, "b"), "c")
        node.leader.on_view(ClusterView(both, 2, node.alive))
        pipe = connected(node)
        node.leader.tick()
        node.answer_write(WriteResult.UNKNOWN, 0)
        return node, pipe

    def test_follower_that_has_not_joined_is_not_waited_for_forever(self) -> None:
        node, pipe = self.joining()
        pipe.link.close()
        answers = node.publish(node.leader.topics["t"].store, "i")
        node.clock.advance(TIMEOUT_NS)
        node.leader.tick()
        record = node.answer_write(WriteResult.STORED, 3)

        assert frozenset({"a"}) == record.in_sync_members
        assert [None] == answers

    def test_follower_joins_a_node_with_an_empty_topic(self) -> None:
        node = Node(add_member(ALONE, "b"))
        node.open("empty")
        connected(node)
        node.leader.tick()

        assert 1 == len(node.writes)

    def test_follower_continues_where_it_was(self) -> None:
        node = self.filled()
        pipe = connected(node)
        pipe.copy.close()
        pipe.link.on_closed()
        node.publish(node.leader.topics["t"].store, "i")
        again = Pipe(node, files=pipe.files)
        sent: list[LeaderMessage] = []
        while again.to_leader or again.to_follower:
            while again.to_leader:
                again.link.on_message(again.to_leader.popleft())
            sent += again.to_follower
            again.deliver_to_follower()

        size = sum(len(message.data) for message in sent if hasattr(message, "data"))
        assert size < 200
        assert list("abcdefghi") == again.bodies()

    def test_slow_follower_is_read_from_the_files(self) -> None:
        node = self.filled()
        pipe = connected(node)
        pipe.can_send = False
        store = node.leader.topics["t"].store
        for body in "ijklmnop":
            node.publish(store, body)
        assert not pipe.to_follower

        pipe.can_send = True
        pipe.link.send_more()
        pipe.run()
        assert list("abcdefghijklmnop") == pipe.bodies()

    def test_former_leader_cuts_what_was_never_confirmed(self) -> None:
        old = Node()
        pipe = connected(old)
        store = old.open()
        old.publish(store, "a")
        pipe.run()
        old.publish(store, "lost", "too")
        old.leader.stop()
        old.data_path.close()
        pipe.copy.close()

        record = NodeRecord(
            node_uuid="uuid", epoch=2, leader="a", in_sync=PAIR.in_sync, members=("a", "b")
        )
        new = Node(record, files=pipe.files)
        new.publish(new.leader.topics["t"].store, "b")
        follower = connected(new, files=old.files)
        assert ["a", "b"] == follower.bodies()
        assert any(name.endswith(".cut") for name in old.files.list_names("data/topics/t"))

    def test_trimmed_and_deleted(self) -> None:
        node = self.filled()
        pipe = connected(node)
        node.open("other")
        store = node.leader.topics["t"].store
        store.log.trim(lambda *_: False, WALL_NS)
        node.data_path.remove_topic("other")
        node.leader.send()
        pipe.run()

        assert ["t"] == [topic.name for topic in pipe.copy.topics()]
        assert 1 == len(pipe.copy.topics()[0].segments)

    def test_topic_created_again_while_the_follower_was_away(self) -> None:
        node = self.filled()
        pipe = connected(node)
        pipe.copy.close()
        node.data_path.remove_topic("t")
        node.publish(node.open(), "new")
        again = connected(node, files=pipe.files)

        assert ["new"] == again.bodies()


class TestRefusal:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"token": "wrong"}, "the token is wrong"),
            ({"cluster": "other"}, "this is node n of cluster shop"),
            ({"node": "other"}, "this is node n of cluster shop"),
            ({"node_uuid": "other"}, "the data path belongs to another node"),
            ({"epoch": 2}, "epoch 1 is over: 2 is known"),
            ({"member": "a"}, "this is a itself"),
            ({"version": 9}, "the stream has version 1, not 9"),
        ],
    )
    def test_follower_is_refused(self, change: dict[str, object], reason: str) -> None:
        node = Node()
        pipe = Pipe(node)
        pipe.to_leader.clear()
        fields: dict[str, object] = {
            "cluster": "shop",
            "node": "n",
            "node_uuid": "uuid",
            "member": "b",
            "incarnation": "b1",
            "epoch": 1,
            "token": "secret",
            "version": STREAM_VERSION,
        }
        with pytest.raises(ReplicationError, match=reason):
            pipe.link.on_message(Hello(**(fields | change)))  # type: ignore[arg-type]

        assert [Refuse(reason, 1)] == list(pipe.to_follower)
        with pytest.raises(ReplicationError, match=f"refuses this member: {reason}"):
            pipe.deliver_to_follower()

    def test_follower_refuses_a_leader_of_an_older_epoch(self) -> None:
        pipe = Pipe(Node())

        with pytest.raises(ReplicationError, match="the leader has epoch 0, but 1 is known"):
            pipe.follower.on_message(Welcome(0, must_sync=False))

    def test_new_connection_of_a_member_replaces_the_old_one(self) -> None:
        node = Node()
        first = connected(node)
        second = connected(node)

        assert first.is_closed
        assert second.link is node.leader.links["b"]
        first.link.on_closed()
        assert second.link is node.leader.links["b"]


class TestBarrier:
    def test_followers_have_everything_before_a_change_is_answered(self) -> None:
        node = Node()
        pipe = connected(node)
        store = node.open()
        store.cursors.create("c", store.log.first_seq)
        answers: list[StorageError | None] = []
        node.leader.when_replicated(answers.append)
        node.leader.send()
        assert [] == answers

        pipe.run()
        assert [None] == answers
        journal = pipe.copy.topics()[0].journal
        assert journal is not None
        assert store.cursors.journal_end == journal.end

    def test_leader_alone_answers_at_the_end_of_the_turn(self) -> None:
        node = Node(ALONE)
        answers: list[StorageError | None] = []
        node.leader.when_replicated(answers.append)
        assert [] == answers

        node.leader.send()
        assert [None] == answers

    def test_it_fails_if_nobody_answers(self) -> None:
        node = Node()
        answers: list[StorageError | None] = []
        node.leader.when_replicated(answers.append)
        node.clock.advance(2 * TIMEOUT_NS)
        node.leader.tick()

        assert isinstance(answers[0], NotInSyncError)


class TestDamage:
    @pytest.mark.usefixtures("damaged_on_purpose")
    def test_damaged_messages_are_not_skipped(self) -> None:
        node = Node(ALONE)
        store = node.open()
        node.publish(store, "a")
        node.publish(store, "b")
        path = f"data/topics/t/{store.log.first_seq:020}.log"
        node.files.open(path, "write").write(b"\xff", 60)
        with pytest.raises(CorruptBatchError):
            store.log.read(store.log.first_seq)
        with pytest.raises(CorruptBatchError):
            store.log.read(store.log.first_seq)
        assert ["t"] == node.damaged

        store.log.skip_damage()
        assert ["b"] == read_all(store.log)

    def test_former_leader_fetches_damaged_messages_again(self) -> None:
        old = Node()
        pipe = connected(old)
        store = old.open()
        for body in "abcd":
            old.publish(store, body)
        pipe.run()
        path = f"data/topics/t/{store.log.first_seq:020}.log"
        old.files.open(path, "write").write(b"\xff", 110)
        with pytest.raises(CorruptBatchError):
            store.log.read(store.log.first_seq)
        old.leader.stop()
        old.data_path.close()
        pipe.copy.close()

        new = Node(PAIR, files=pipe.files)
        follower = connected(new, files=old.files)
        assert list("abcd") == follower.bodies()

    @pytest.mark.usefixtures("damaged_on_purpose")
    def test_damage_that_only_a_follower_reads_is_reported_to_the_leader(self) -> None:
        node = Node(add_member(ALONE, "b"))
        store = node.open()
        for body in "abcd":
            node.publish(store, body)
        path = f"data/topics/t/{store.log.first_seq:020}.log"
        node.files.open(path, "write").write(b"\xff", 110)
        pipe = Pipe(node)
        with pytest.raises(ReplicationError, match="the leader has sent damaged data"):
            pipe.run()
        node.leader.tick()
        assert [] == node.damaged

        pipe.link.on_closed()
        again = Pipe(node, files=pipe.files, copy=pipe.copy)
        with pytest.raises(ReplicationError, match="the leader has sent damaged data"):
            again.run()
        node.leader.tick()
        assert ["t"] == node.damaged

    def test_report_of_damage_that_is_not_there_changes_nothing(self) -> None:
        node = Node(add_member(ALONE, "b"))
        store = node.open()
        node.publish(store, "a")
        log_id = bytes.fromhex(store.log.log_id)
        for damaged in (
            Damaged("t", log_id, store.log.first_seq),
            Damaged("t", log_id, store.log.first_seq + 7),
            Damaged("t", bytes(16), store.log.first_seq),
            Damaged("unknown", log_id, store.log.first_seq),
        ):
            node.leader.check_segment(damaged)
            node.leader.tick()
            node.leader.tick()

        assert ([], ["a"]) == (node.damaged, read_all(store.log))


class TestFollowersThatDoNotAnswer:
    def test_follower_that_acknowledges_nothing_is_disconnected(self) -> None:
        node = Node(add_member(ALONE, "b"))
        pipe = connected(node)
        node.publish(node.open(), "a")
        for _ in range(3 * 60):
            node.clock.advance(SECOND_NS)
            node.leader.tick()

        assert pipe.is_closed
        assert {} == node.leader.links

    def test_change_after_the_end_of_the_leadership_is_refused(self) -> None:
        node = Node()
        answers: list[StorageError | None] = []
        node.leader.stop()
        node.leader.when_replicated(answers.append)

        assert [NotInSyncError] == [type(each) for each in answers]

    def test_failed_start_of_an_fsync_ends_the_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = Node(must_sync=True)
        pipe = connected(node)
        node.publish(node.open(), "a")
        pipe.deliver_to_follower()
        error = StorageError("too many open files")
        monkeypatch.setattr(pipe.copy, "begin_sync", Mock(side_effect=error))
        pipe.fsync()

        assert [error] == pipe.failures


class TestCatchingUpUnderLoad:
    def test_follower_joins_while_messages_are_published_without_a_pause(self) -> None:
        node = Node(add_in_sync(add_member(add_member(ALONE, "b"), "c"), "c", "c1"))
        connected(node, "c")
        pipe, store = Pipe(node, "b"), node.open()
        for number in range(10):
            node.publish(store, str(number))
            while pipe.to_leader:
                pipe.link.on_message(pipe.to_leader.popleft())
            assert not pipe.link.has_everything
            node.leader.tick()
            pipe.deliver_to_follower()

        assert frozenset({"a", "b", "c"}) == node.writes[0][0].in_sync_members

    def test_follower_that_lacks_an_answered_change_does_not_join(self) -> None:
        node = Node(add_member(ALONE, "b"))
        store = node.open()
        pipe = connected(node)
        answers: list[StorageError | None] = []
        store.cursors.create("channel", store.log.next_seq)
        node.leader.when_replicated(answers.append)
        node.leader.send()
        assert [None] == answers
        node.leader.tick()
        assert [] == node.writes

        pipe.run()
        node.leader.tick()
        assert frozenset({"a", "b"}) == node.writes[0][0].in_sync_members
