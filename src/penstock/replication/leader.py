"""The leader: sends its files to the followers, and decides which messages are acknowledged.

The leader observes the data path. For each follower it remembers how much of every file it has
sent. Once per turn of the loop, it reads the unsent bytes from the files and sends them. A follower
that is behind gets the older bytes in the same way.

A message is confirmed when every member in sync has it. The high watermark of a log is the number
below which all messages are confirmed: producers get their OK, and channels and readers see the
messages.

The members in sync are those of the record in etcd, and those that the leader is about to add. A
follower that does not acknowledge in time is removed, in the record, before a message is confirmed
without it.

If fewer than `min_in_sync` members would remain, a running follower is not removed, and publishes
are refused instead: if the network fails at the leader's side, this follower has to take over.

No sockets, no clock, no tasks: `FollowerConnection` sends, and the owner calls `tick` regularly.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from google_crc32c import value as crc32c

from penstock.broker.topic import Topic
from penstock.common.clock import Clock
from penstock.common.errors import NotInSyncError, ReplicationError, StorageError
from penstock.common.logs import Logger
from penstock.replication.catch_up import compare_segments
from penstock.replication.coordination import ClusterView, WriteResult
from penstock.replication.node_record import NodeRecord, add_in_sync, prefer_leader, remove_in_sync
from penstock.replication.stream import (
    CHUNK_BYTES,
    Ack,
    Batches,
    CutSegment,
    Damaged,
    FollowerMessage,
    FormatSettings,
    HaveAll,
    HaveTopic,
    Hello,
    Journal,
    JournalState,
    KeepAlive,
    LeaderMessage,
    MetadataFile,
    OpenTopic,
    Refuse,
    RemoveSegment,
    RemoveTopic,
    SegmentState,
    Welcome,
)
from penstock.storage import TopicStore
from penstock.storage.topic_log import TrimmedError

__all__ = ["STREAM_VERSION", "FollowerConnection", "FollowerLink", "Leader", "LeaderSettings"]

STREAM_VERSION = 1

# Maximum bytes that one turn sends to a follower, so that clients have their turn.
_TURN_BYTES = 4 * 1024 * 1024

_NO_ANSWER = "the followers do not answer"

_HEARTBEAT_NS = 1_000_000_000

# A follower that acknowledges nothing for this long, and for this many times the replica timeout,
# is disconnected: what was sent to it takes memory until it is acknowledged.
_DISCONNECT_NS = 60_000_000_000
_DISCONNECT_FACTOR = 10


class FollowerConnection(Protocol):
    """The connection of a follower."""

    def send(self, message: LeaderMessage) -> None:
        """Send a message."""

    @property
    def can_send(self) -> bool:
        """Whether the write buffer has room. If not, the owner calls `FollowerLink.send_more` once
        it has."""

    def close(self) -> None:
        """Close the connection; the owner then calls `FollowerLink.on_closed`."""


class LeaderSettings(NamedTuple):
    """Identity and options of a leader."""

    cluster: str
    node: str
    member: str
    epoch: int
    token: str
    must_sync: bool
    """Whether a message counts for a member only after the member has fsynced it."""
    min_in_sync: int
    """With fewer members in sync, publishes are refused."""
    timeout_ns: int
    """A follower that does not acknowledge for this long is not in sync."""
    replicas: int = 1
    """Number of members that the node is meant to have."""
    preferred_rank: int | None = None
    """Position of the preferred leader in the sorted list of members, once the node has
    `replicas` members; None for no preference."""


class _Waiter(NamedTuple):
    next_seq: int
    since_ns: int
    done: Callable[[StorageError | None], None]


class _Barrier:
    """A wait until every member in sync has everything that was written before the wait began;
    `done` is then called."""

    def __init__(self, since_ns: int, done: Callable[[StorageError | None], None]) -> None:
        self.since_ns = since_ns
        self.done = done
        self._positions: dict[FollowerLink, int] = {}

    def is_reached(self, links: list["FollowerLink | None"]) -> bool:
        """Whether each of these followers has acknowledged everything that was written before the
        wait began."""
        return all(link is not None and self._has_reached(link) for link in links)

    def _has_reached(self, link: "FollowerLink") -> bool:
        if link not in self._positions:
            if not link.is_streaming or link.has_unsent:
                return False
            self._positions[link] = link.position
        return link.acked_position >= self._positions[link]


class LedTopic:
    """A topic of the leader, and the producers that wait for its messages to be confirmed."""

    def __init__(self, number: int, name: str, store: TopicStore) -> None:
        self.number = number
        self.name = name
        self.store = store
        self.log_id = bytes.fromhex(store.log.log_id)
        self.opened_seq = store.log.next_seq
        """Messages below this number are of earlier runs."""
        self.waiters: deque[_Waiter] = deque()


class _FilePosition(NamedTuple):
    """How much of a log or a journal was sent: all earlier files, and `file` up to `position`.
    `file` is the first number of a segment, or the generation of a journal."""

    file: int
    position: int


class _Unacked(NamedTuple):
    position: int
    since_ns: int
    topic: LedTopic | None
    next_seq: int
    """Once the message at `position` is acknowledged, the follower is known to have all messages of
    the topic below this number."""
    size: int = 0
    """Bytes of a log in the message."""


class FollowerLink:
    """One connection of a follower."""

    def __init__(self, leader: "Leader", connection: FollowerConnection) -> None:
        self.member = ""
        self.incarnation = ""
        self.is_streaming = False
        """Whether the follower has told what it has."""
        self.has_caught_up = False
        """Whether the follower has acknowledged everything that existed at one moment since it
        connected."""
        self._catch_up_position: int | None = None
        """With this position the follower has caught up; None if not everything was sent yet."""
        self.confirmed: dict[LedTopic, int] = {}
        """The follower has all messages of a topic below this number."""
        self.position = 0
        """Number of messages sent since `Welcome`."""
        self.acked_position = 0
        self._missing_bytes = 0
        """What the logs of the follower lacked when it connected."""
        self._sent_bytes = 0
        """How much of the logs was sent."""
        self._leader = leader
        self._connection = connection
        self._is_closed = False
        self._inventory: dict[str, HaveTopic] = {}
        self._unacked: deque[_Unacked] = deque()
        self._logs: dict[LedTopic, _FilePosition] = {}
        self._present: dict[LedTopic, dict[int, int]] = {}
        """How much of the later segments the follower had when it connected."""
        self._journals: dict[LedTopic, _FilePosition] = {}
        self._unsent_logs: dict[LedTopic, None] = {}
        self._unsent_journals: dict[LedTopic, None] = {}
        self._settings: FormatSettings | None = None
        self._last_sent_ns = 0

    @property
    def has_unsent(self) -> bool:
        """Whether the leader has data for the follower that was not sent yet."""
        return bool(self._unsent_logs or self._unsent_journals)

    @property
    def has_everything(self) -> bool:
        """Whether the follower has acknowledged all data of the leader."""
        return self.is_streaming and not self.has_unsent and not self._unacked

    @property
    def oldest_unacked_ns(self) -> int | None:
        """When the oldest message that was not acknowledged yet was sent."""
        return self._unacked[0].since_ns if self._unacked else None

    @property
    def catch_up_progress(self) -> tuple[int, int]:
        """Bytes sent, and all bytes that the follower lacked when it connected."""
        return min(self._sent_bytes, self._missing_bytes), self._missing_bytes

    def lag_messages(self) -> dict[str, int]:
        """Number of messages that the follower has not acknowledged, by topic; only topics with
        such messages."""
        lags = {
            name: topic.store.log.next_seq
            - max(self.confirmed.get(topic, 0), topic.store.log.first_seq)
            for name, topic in self._leader.topics.items()
        }
        return {name: lag for name, lag in lags.items() if lag > 0}

    def lag_bytes(self) -> int:
        """Bytes of the logs that the follower has not acknowledged."""
        unacked = sum(each.size for each in self._unacked)
        return unacked + sum(map(self._unsent_bytes, self._leader.topics.values()))

    def _unsent_bytes(self, topic: LedTopic) -> int:
        log = topic.store.log
        sent = self._logs.get(topic, _FilePosition(-1, 0))
        if log.is_end(sent.file, sent.position):
            return 0
        present = self._present.get(topic, {})
        return sum(
            each.byte_size
            - (sent.position if each.first_seq == sent.file else present.get(each.first_seq, 0))
            for each in log.segments
            if each.first_seq >= sent.file
        )

    # Messages of the follower

    def on_message(self, message: FollowerMessage) -> None:
        """Handle a message. Raises ReplicationError; the connection must then be closed."""
        match message:
            case Ack() if self.is_streaming:
                self._on_ack(message.position)
            case Hello() if not self.member:
                self._on_hello(message)
            case HaveTopic() if self.member and not self.is_streaming:
                self._inventory[message.name] = message
            case Damaged() if self.member and not self.is_streaming:
                self._leader.check_segment(message)
            case HaveAll() if self.member and not self.is_streaming:
                self._start_streaming()
            case _:
                raise ReplicationError(f"unexpected message {type(message).__name__}")

    def on_closed(self) -> None:
        """The connection was closed."""
        if not self._is_closed:
            self._is_closed = True
            self._leader.link_closed(self)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self.on_closed()

    def _on_hello(self, hello: Hello) -> None:
        reason = self._leader.reason_to_refuse(hello)
        if reason:
            self._connection.send(Refuse(reason, self._leader.settings.epoch))
            raise ReplicationError(f"refused {hello.member}: {reason}")
        self.member, self.incarnation = hello.member, hello.incarnation
        settings = self._leader.settings
        self._connection.send(Welcome(settings.epoch, settings.must_sync))
        self._leader.link_opened(self)

    def _on_ack(self, position: int) -> None:
        if not self.acked_position <= position <= self.position:
            raise ReplicationError(f"{self.member} has acknowledged message {position}")
        self.acked_position = position
        changed: dict[LedTopic, None] = {}
        while self._unacked and self._unacked[0].position <= position:
            _, _, topic, next_seq, _ = self._unacked.popleft()
            if topic is not None and next_seq > self.confirmed.get(topic, next_seq):
                self.confirmed[topic] = next_seq
                changed[topic] = None
        # While messages are published, there may be no moment without unacknowledged ones.
        if self._catch_up_position is not None and position >= self._catch_up_position:
            self.has_caught_up = True
        for topic in changed:
            self._leader.update_watermark(topic)
        self._leader.check_barriers()

    # The start of the stream

    def _start_streaming(self) -> None:
        self.is_streaming = True
        self._leader.link_streams(self)
        self._leader.latest_links[self.member] = self
        topics = self._leader.topics
        self._send_settings()
        for name, found in self._inventory.items():
            topic = topics.get(name)
            if topic is None or topic.log_id != found.log_id:
                self._send(RemoveTopic(name, found.log_id))
        if self._leader.metadata is not None:
            self._send(MetadataFile(self._leader.metadata))
        for topic in topics.values():
            found_topic = self._inventory.get(topic.name)
            if found_topic is not None and found_topic.log_id != topic.log_id:
                found_topic = None
            self.open_topic(topic, found_topic)
        self._inventory.clear()
        self._leader.update_all_watermarks()
        self.send_more()

    def open_topic(self, topic: LedTopic, found: HaveTopic | None = None) -> None:
        """Start to send a topic. `found` is what the follower has of it."""
        self._send(OpenTopic(topic.number, topic.name, topic.log_id))
        self.confirmed[topic] = 0
        extents = topic.store.log.segments_info()
        compared = compare_segments(
            [SegmentState(*extent) for extent in extents], found.segments if found else []
        )
        for first_seq, end in compared.cuts:
            self._send(CutSegment(topic.number, first_seq, end))
        for first_seq in compared.trimmed:
            self._send(RemoveSegment(topic.number, first_seq))
        # What the follower has may not be fsynced yet: it counts once the follower acknowledges.
        self._note(topic, compared.confirmed_seq)
        self._present[topic] = compared.present
        if not self.has_caught_up:
            present_bytes = sum(compared.present.values())
            self._missing_bytes += sum(each.end for each in extents) - present_bytes
        if extents:
            first = extents[0].first_seq
            self._logs[topic] = _FilePosition(first, compared.present[first])
        self._journals[topic] = self._sent_journal(topic, found.journal if found else None)
        self._unsent_logs[topic] = self._unsent_journals[topic] = None

    def _sent_journal(self, topic: LedTopic, found: JournalState | None) -> _FilePosition:
        """How much of the current journal the follower has. If the follower's bytes differ from the
        leader's, the journal is sent from position 0."""
        cursors = topic.store.cursors
        generation = cursors.generation
        if found is None or found.generation != generation or found.end > cursors.journal_end:
            return _FilePosition(generation, 0)
        is_equal = crc32c(cursors.read_raw(generation, 0, found.end)) == found.crc
        return _FilePosition(generation, found.end if is_equal else 0)

    # Sending

    def log_written(self, topic: LedTopic) -> None:
        self._unsent_logs[topic] = None

    def journal_written(self, topic: LedTopic) -> None:
        self._unsent_journals[topic] = None

    def segment_removed(self, topic: LedTopic, first_seq: int) -> None:
        self._send(RemoveSegment(topic.number, first_seq))

    def topic_removed(self, topic: LedTopic) -> None:
        self._send(RemoveTopic(topic.name, topic.log_id))
        for of_topic in (self._logs, self._journals, self._present, self.confirmed):
            of_topic.pop(topic, None)
        self._unsent_logs.pop(topic, None)
        self._unsent_journals.pop(topic, None)

    def send_metadata(self, content: bytes) -> None:
        self._send(MetadataFile(content))

    def send_more(self) -> None:
        """Send data that the follower lacks, while the write buffer has room."""
        budget = _TURN_BYTES
        while self._unsent_logs and budget > 0 and self._connection.can_send:
            topic = next(iter(self._unsent_logs))
            del self._unsent_logs[topic]
            budget -= self._send_log(topic)
        while self._unsent_journals and budget > 0 and self._connection.can_send:
            topic = next(iter(self._unsent_journals))
            del self._unsent_journals[topic]
            budget -= self._send_journal(topic)
        if not self.has_unsent:
            if self._catch_up_position is None:
                self._catch_up_position = self.position
        elif self._connection.can_send:
            self._leader.send_soon()

    def start_catch_up(self) -> None:
        """A change was answered without this follower: it has caught up once it has acknowledged
        that, too."""
        if not self.has_everything:
            self.has_caught_up = False
            self._catch_up_position = None if self.has_unsent else self.position

    def tick(self, now_ns: int) -> None:
        """Send changed settings, or a heartbeat if nothing else was sent."""
        if self.is_streaming:
            self._send_settings()
            if now_ns - self._last_sent_ns >= _HEARTBEAT_NS:
                self._send(KeepAlive())

    def _send_settings(self) -> None:
        settings = self._leader.format_settings()
        if settings != self._settings:
            self._settings = settings
            self._send(settings)

    def _send_log(self, topic: LedTopic) -> int:
        """Send one piece of a log, and return its size. If more is unsent, the log is queued again
        behind the other topics."""
        log = topic.store.log
        sent = self._logs.get(topic)
        if sent is None:
            first_seq = log.next_segment_seq(-1)
            if first_seq is None:
                self._note(topic, log.next_seq)
                return 0
            sent = _FilePosition(first_seq, 0)
        while not (data := self._leader.read_log(topic, sent.file, sent.position)):
            following = log.next_segment_seq(sent.file)
            if following is None:
                self._logs[topic] = sent
                self._note(topic, log.next_seq)
                return 0
            sent = _FilePosition(following, self._present.get(topic, {}).pop(following, 0))
        self._send(Batches(topic.number, sent.file, sent.position, data), len(data))
        self._sent_bytes += len(data)
        sent = _FilePosition(sent.file, sent.position + len(data))
        self._logs[topic] = sent
        if log.is_end(sent.file, sent.position):
            self._note(topic, log.next_seq)
        else:
            self._unsent_logs[topic] = None
        return len(data)

    def _send_journal(self, topic: LedTopic) -> int:
        cursors = topic.store.cursors
        sent = self._journals[topic]
        if sent.file != cursors.generation:
            sent = _FilePosition(cursors.generation, 0)
        try:
            data = cursors.read_raw(sent.file, sent.position, CHUNK_BYTES)
        except TrimmedError:
            # The journal has been given up after a failed fsync. Its next generation is reported.
            return 0
        self._journals[topic] = _FilePosition(sent.file, sent.position + len(data))
        if data:
            self._send(Journal(topic.number, sent.file, sent.position, data))
            if sent.position + len(data) < cursors.journal_end:
                self._unsent_journals[topic] = None
        return len(data)

    def _note(self, topic: LedTopic, next_seq: int) -> None:
        """Record that the follower has all messages of the topic below `next_seq` once it has
        acknowledged everything sent so far."""
        if self._unacked:
            noted = self._unacked[-1]._replace(topic=topic, next_seq=next_seq, size=0)
            self._unacked.append(noted)
        elif next_seq > self.confirmed[topic]:
            self.confirmed[topic] = next_seq
            self._leader.update_watermark(topic)

    def _send(self, message: LeaderMessage, size: int = 0) -> None:
        now_ns = self._leader.now_ns()
        self.position += 1
        self._unacked.append(_Unacked(self.position, now_ns, None, 0, size))
        self._last_sent_ns = now_ns
        self._connection.send(message)


class Leader:
    """The leader of one epoch. Implements `StoreObserver` and `PublishConfirmation`."""

    def __init__(
        self,
        settings: LeaderSettings,
        view: ClusterView,
        clock: Clock,
        log: Logger,
        *,
        write: Callable[[NodeRecord, int, Callable[[WriteResult], None]], None],
        format_settings: Callable[[], FormatSettings],
        on_visible: Callable[[str], None],
        send_soon: Callable[[], None],
        on_damage: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`write` is `Coordinator.write`. `on_visible` is called with the name of a topic whose
        high watermark has moved. `send_soon` is called when there is something to send: the owner
        then calls `send` at the end of the loop's turn. `on_damage` is called with the name of a
        topic in which a read has found damaged bytes."""
        assert view.record is not None
        self.settings = settings
        self._disconnect_ns = max(_DISCONNECT_NS, _DISCONNECT_FACTOR * settings.timeout_ns)
        self.topics: dict[str, LedTopic] = {}
        self.links: dict[str, FollowerLink] = {}
        self.latest_links: dict[str, FollowerLink] = {}
        """The last connection of each follower, also if it was closed: for its lag."""
        self.metadata: bytes | None = None
        self.now_ns = clock.now_ns
        self.format_settings = format_settings
        self.send_soon = send_soon
        self.record = view.record
        self._revision = view.revision
        self._alive = view.alive
        self._log = log
        self._write = write
        self._on_visible = on_visible
        self._on_damage = on_damage
        self._streaming: tuple[FollowerLink, ...] = ()
        self._by_store: dict[TopicStore, LedTopic] = {}
        self._appended: dict[LedTopic, None] = {}
        """Topics with new messages in this turn of the loop."""
        self._next_number = 1
        self._is_serving = False
        self._check: Iterator[None] | None = None
        """The segment that is being checked for damage."""
        self._late: frozenset[str] = frozenset()
        """Followers that have not acknowledged in time."""
        self._joining: frozenset[str] = frozenset()
        """Members that the leader has asked etcd to add, since the record that it knows. Their
        acknowledgements are required already, and also if the answer of etcd is lost."""
        self._barriers: list[_Barrier] = []
        self._is_writing = False
        self._missing_since: dict[str, int] = {}
        """When members in sync were last connected."""
        self.is_stopped = False
        self._required: frozenset[str] = frozenset()
        self._pieces: dict[tuple[LedTopic, int, int], bytes] | None = None
        """What was read in this call of `send`, for the other followers."""
        self._update_required()

    @property
    def required(self) -> frozenset[str]:
        """The followers that must have a message before it is confirmed."""
        return self._required

    def start(self) -> None:
        """To be called when all topics are open: confirm the messages that every member in sync
        has."""
        self._is_serving = True
        self.update_all_watermarks()

    # The record

    def on_view(self, view: ClusterView) -> None:
        """Handle a change of the node record or of the set of running members, while this member
        leads."""
        assert view.record is not None
        self._alive = view.alive
        if view.revision > self._revision:
            self.record, self._revision = view.record, view.revision
            self._joining = frozenset()
            self._update_required()
            self.update_all_watermarks()
        self._find_late_members()
        self._change_in_sync()

    def tick(self) -> None:
        """Send heartbeats, find late followers and fail late publishes. To be called several times
        a second."""
        now_ns = self.now_ns()
        for link in tuple(self.links.values()):
            since_ns = link.oldest_unacked_ns
            if since_ns is not None and now_ns - since_ns >= self._disconnect_ns:
                self._log.warning("REPLICATION: %s acknowledges nothing", link.member)
                link.close()
            else:
                link.tick(now_ns)
        self._find_late_members()
        self._change_in_sync()
        self._fail_late_waiters(now_ns)
        self._continue_check()

    def stop(self) -> None:
        """Stop confirming messages, because this member no longer leads or is being stopped."""
        self.is_stopped = True
        for link in tuple(self.links.values()):
            link.close()
        error = self._not_leading_error()
        for topic in self.topics.values():
            self._fail_waiters(topic, error)
        self._fail_barriers(error)

    def _not_leading_error(self) -> NotInSyncError:
        return NotInSyncError(f"{self.settings.member} no longer leads {self.settings.node}")

    def _change_in_sync(self) -> None:
        """Ask etcd to remove late followers from the members in sync, or to add one follower that
        has caught up. Only one request runs at a time.

        If the answer to a request to add a follower was lost, the leader does not know whether the
        follower was added. If that follower is then late, the leader stores the record unchanged:
        the view that results from it shows whether the follower is in sync."""
        if self._is_writing or self.is_stopped:
            return
        removed = self._late
        if len(self.record.in_sync_members - removed) < self.settings.min_in_sync:
            removed = frozenset(each for each in removed if not self._may_take_over(each))
        if removed:
            self._log.warning("REPLICATION: %s not in sync any more", ", ".join(sorted(removed)))
            self._write_record(remove_in_sync(self.record, removed))
            return
        for link in self.links.values():
            if self._can_join(link):
                # An earlier request without an answer may still be executed.
                self._joining |= {link.member}
                self._update_required()
                self._log.info("REPLICATION: %s has caught up", link.member)
                self._write_record(add_in_sync(self.record, link.member, link.incarnation))
                return
        self._prefer_leader()

    def _prefer_leader(self) -> None:
        """Store the preferred leader in the record, unless the record has one."""
        rank, members = self.settings.preferred_rank, self.record.members
        if rank is None or self.record.preferred_leader is not None:
            return
        if len(members) >= self.settings.replicas:
            self._write_record(prefer_leader(self.record, members[rank % len(members)]))

    def _update_required(self) -> None:
        """Compute `required` again, after a change of the record or of the members that are about
        to join. Every acknowledgement needs this set, so it is stored."""
        self._required = (self.record.in_sync_members | self._joining) - {self.settings.member}

    def _find_late_members(self) -> None:
        now_ns = self.now_ns()
        late = set()
        incarnations = {each.member: each.incarnation for each in self.record.in_sync}
        for member in self.required:
            link = self.links.get(member)
            # A member that joins is not in the record: any incarnation is right.
            if (
                link is not None
                and link.is_streaming
                and (member in self._joining or link.incarnation == incarnations[member])
            ):
                self._missing_since.pop(member, None)
                since_ns = link.oldest_unacked_ns
            elif member not in self._alive:
                since_ns = now_ns - self.settings.timeout_ns
            else:
                since_ns = self._missing_since.setdefault(member, now_ns)
            is_late = since_ns is not None and now_ns - since_ns >= self.settings.timeout_ns
            has_recovered = link is not None and link.has_caught_up
            if is_late or (member in self._late and not has_recovered):
                late.add(member)
        for member in sorted(late - self._late):
            self._log.warning("REPLICATION: %s does not acknowledge", member)
        self._late = frozenset(late)

    def _may_take_over(self, member: str) -> bool:
        """Whether a follower is running and has every acknowledged message."""
        address = self._alive.get(member)
        return address is not None and self.record.is_in_sync(member, address.incarnation)

    def _can_join(self, link: FollowerLink) -> bool:
        return (
            link.has_caught_up
            and link.member in self.record.members
            and not self.record.is_in_sync(link.member, link.incarnation)
            and all(
                link.confirmed.get(topic, 0) >= topic.store.log.high_watermark
                for topic in self.topics.values()
            )
        )

    def _write_record(self, record: NodeRecord) -> None:
        self._is_writing = True
        self._write(record, self._revision, self._on_written)

    def _on_written(self, result: WriteResult) -> None:
        # The view that follows has the new record, or the one that was in the way.
        self._is_writing = False
        if result is WriteResult.CONFLICT:
            self._log.info("REPLICATION: the record has changed meanwhile")

    # Followers

    def reason_to_refuse(self, hello: Hello) -> str:
        """The reason to refuse a follower; empty if the leader accepts it."""
        settings = self.settings
        if hello.version != STREAM_VERSION:
            return f"the stream has version {STREAM_VERSION}, not {hello.version}"
        if hello.token != settings.token:
            return "the token is wrong"
        if (hello.cluster, hello.node) != (settings.cluster, settings.node):
            return f"this is node {settings.node} of cluster {settings.cluster}"
        if hello.node_uuid != self.record.node_uuid:
            return "the data path belongs to another node"
        if hello.epoch > settings.epoch:
            return f"epoch {settings.epoch} is over: {hello.epoch} is known"
        if hello.member == settings.member:
            return f"this is {settings.member} itself"
        if self.is_stopped:
            return f"{settings.member} no longer leads"
        return ""

    def link_opened(self, link: FollowerLink) -> None:
        """Add the connection of an accepted follower. An earlier connection of the same member is
        closed."""
        earlier = self.links.pop(link.member, None)
        if earlier is not None:
            earlier.close()
        self.links[link.member] = link
        self._log.info("REPLICATION: %s follows", link.member)

    def link_streams(self, link: FollowerLink) -> None:
        """Start to send all new data to a follower, which has reported what data it already has."""
        self._streaming = (*self._streaming, link)

    def link_closed(self, link: FollowerLink) -> None:
        """Remove the closed connection of a follower."""
        self._streaming = tuple(each for each in self._streaming if each is not link)
        if self.links.get(link.member) is link:
            del self.links[link.member]
            self._missing_since[link.member] = self.now_ns()
            self._log.info("REPLICATION: %s is disconnected", link.member)

    def send(self) -> None:
        """Send the data that was written in this turn of the loop to all followers. Without
        followers in sync, its messages are confirmed at once."""
        appended, self._appended = self._appended, {}
        if not self.required:
            for topic in appended:
                self.update_watermark(topic)
        if len(self._streaming) > 1:
            self._pieces = {}
        try:
            for link in self._streaming:
                try:
                    link.send_more()
                except StorageError as error:
                    self._log.error("REPLICATION: cannot read for %s - %s", link.member, error)
                    link.close()
        finally:
            self._pieces = None
        self.check_barriers()

    def read_log(self, topic: LedTopic, file: int, position: int) -> bytes:
        """Read a piece of a segment; empty if there is no more. Followers at the same position
        share one read."""
        pieces = self._pieces
        if pieces is not None and (found := pieces.get((topic, file, position))) is not None:
            return found
        try:
            data = topic.store.log.read_raw(file, position, CHUNK_BYTES)
        except TrimmedError:
            return b""
        if pieces is not None:
            pieces[topic, file, position] = data
        return data

    # The high watermark

    def update_watermark(self, topic: LedTopic) -> None:
        """Confirm the messages of a topic that every member in sync has."""
        if self.is_stopped or not self._is_serving:
            return
        log = topic.store.log
        confirmed = log.synced_seq if self.settings.must_sync else log.next_seq
        for member in self.required:
            link = self.links.get(member)
            if link is None or not link.is_streaming:
                return
            confirmed = min(confirmed, link.confirmed.get(topic, 0))
        if len(self.record.in_sync) < self.settings.min_in_sync:
            # Too few copies for new messages. Those of earlier runs stay visible.
            confirmed = min(confirmed, topic.opened_seq)
        if confirmed > log.high_watermark:
            log.set_high_watermark(confirmed)
            self._on_visible(topic.name)
        waiters = topic.waiters
        while waiters and waiters[0].next_seq <= confirmed:
            waiters.popleft().done(None)

    def update_all_watermarks(self) -> None:
        """Confirm the messages of all topics that every member in sync has."""
        for topic in tuple(self.topics.values()):
            self.update_watermark(topic)

    # Publishing

    def check_writable(self) -> None:
        """Raise NotInSyncError if too few members are in sync to accept messages."""
        count = len(self.record.in_sync)
        if self._late:
            count = len(self.record.in_sync_members - self._late)
        if self.is_stopped or count < self.settings.min_in_sync:
            raise NotInSyncError(
                f"{count} of {len(self.record.members)} members are in sync; "
                f"{self.settings.min_in_sync} are needed"
            )

    def when_confirmed(
        self, topic: Topic, next_seq: int, done: Callable[[StorageError | None], None]
    ) -> None:
        """Call `done` later, when all messages of a topic below `next_seq` are confirmed."""
        assert topic.store is not None
        waiter = _Waiter(next_seq, self.now_ns(), done)
        self._by_store[topic.store].waiters.append(waiter)

    def when_replicated(self, done: Callable[[StorageError | None], None]) -> None:
        """Call `done` later, when every member in sync has all files as they are now: messages,
        topics and channels, and the progress of channels. After `stop`, call it with an error at
        once."""
        if self.is_stopped:
            done(self._not_leading_error())
            return
        self._barriers.append(_Barrier(self.now_ns(), done))
        self.send_soon()

    def check_barriers(self) -> None:
        """End the waits whose data all required followers have acknowledged."""
        if not self._barriers:
            return
        links = [self.links.get(member) for member in self.required]
        barriers, self._barriers = self._barriers, []
        for barrier in barriers:
            if barrier.is_reached(links):
                for link in self._streaming:
                    if link.member not in self.required:
                        link.start_catch_up()
                barrier.done(None)
            else:
                self._barriers.append(barrier)

    def _fail_barriers(self, error: StorageError, *, older_than_ns: int = 0) -> None:
        barriers, self._barriers = self._barriers, []
        for barrier in barriers:
            if self.now_ns() - barrier.since_ns >= older_than_ns:
                barrier.done(error)
            else:
                self._barriers.append(barrier)

    def synced(self, topic: Topic) -> None:
        """To be called when the leader has fsynced messages of a topic: confirm them if the
        followers have them."""
        assert topic.store is not None
        replicated = self._by_store.get(topic.store)
        if replicated is not None:
            self.update_watermark(replicated)

    def _fail_late_waiters(self, now_ns: int) -> None:
        """Refuse publishes that were not confirmed for a long time. This happens if a follower does
        not answer, and cannot be removed because etcd does not answer either."""
        for topic in self.topics.values():
            if topic.waiters and now_ns - topic.waiters[0].since_ns > 2 * self.settings.timeout_ns:
                self._fail_waiters(topic, NotInSyncError(_NO_ANSWER))
        self._fail_barriers(NotInSyncError(_NO_ANSWER), older_than_ns=2 * self.settings.timeout_ns)

    def _fail_waiters(self, topic: LedTopic, error: StorageError) -> None:
        waiters, topic.waiters = topic.waiters, deque()
        for waiter in waiters:
            waiter.done(error)

    # Changes of the data path

    def topic_created(self, name: str, store: TopicStore) -> None:
        topic = LedTopic(self._next_number, name, store)
        self._next_number += 1
        self.topics[name] = self._by_store[store] = topic
        for link in self._streaming:
            link.open_topic(topic)
        self.update_watermark(topic)
        self.send_soon()

    def topic_removed(self, name: str, log_id: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        del self._by_store[topic.store]
        self._fail_waiters(topic, StorageError(f"topic {name} was deleted"))
        for link in self._streaming:
            link.topic_removed(topic)
        self.send_soon()

    def appended(self, store: TopicStore) -> None:
        topic = self._by_store[store]
        self._appended[topic] = None
        for link in self._streaming:
            link.log_written(topic)
        self.send_soon()

    def journal_written(self, store: TopicStore) -> None:
        topic = self._by_store.get(store)
        if topic is not None:
            for link in self._streaming:
                link.journal_written(topic)
            self.send_soon()

    def segment_removed(self, store: TopicStore, first_seq: int) -> None:
        for link in self._streaming:
            link.segment_removed(self._by_store[store], first_seq)

    # Damage

    def damage_found(self, store: TopicStore) -> None:
        self._on_damage(store.name)

    def check_segment(self, damaged: Damaged) -> None:
        """Start to read a segment of which a follower has received damaged bytes. If the file is
        damaged, `damage_found` is called."""
        topic = self.topics.get(damaged.topic)
        if self._check is None and topic is not None and topic.log_id == damaged.log_id:
            self._log.warning("REPLICATION: checking a segment of %s", damaged.topic)
            self._check = topic.store.log.check_segment(damaged.first_seq)

    def _continue_check(self) -> None:
        """Read a part of the segment that is being checked, so that clients have their turn."""
        if self._check is None:
            return
        try:
            next(self._check)
        except StopIteration:
            self._check = None
        except StorageError as error:
            self._check = None
            self._log.error("REPLICATION: cannot check a segment - %s", error)

    def metadata_written(self, content: bytes) -> None:
        """Send the new content of nsqd.dat to all followers."""
        self.metadata = content
        for link in self._streaming:
            link.send_metadata(content)
