"""A follower's copy of a data path accepts only what continues it, and survives crashes."""

from random import Random

import pytest
from tests.storage.frames import WALL_NS, frames, read_all

from penstock.common.errors import ReplicationError, StorageError
from penstock.replication.copied_data_path import CopiedDataPath
from penstock.replication.stream import (
    Batches,
    CutSegment,
    FormatSettings,
    Journal,
    LeaderMessage,
    MetadataFile,
    OpenTopic,
    RemoveSegment,
    RemoveTopic,
    SegmentState,
)
from penstock.storage import DataPath, LogSettings
from penstock.storage.layout import Issue, cursors_name, maybe_generation, maybe_segment_seq
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash

FOLDER = "data/topics/t"
# Room for three batches of one short message.
SMALL = LogSettings(max_bytes_per_file=230)
SEQ = WALL_NS // 1000


def content(files: MemoryFiles, path: str) -> bytes:
    file = files.open(path, "read")
    return file.read(0, file.size())


class Source:
    """A data path with five messages in two segments, and a channel; the leader's files."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_folder("data")
        data_path = DataPath.open("data", SMALL, self.files)
        store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
        for at, body in enumerate("abcde"):
            store.log.append(frames(body), WALL_NS + at)
        store.cursors.create("c", SEQ)
        store.cursors.finish("c", SEQ, SEQ + 2)
        store.cursors.flush()
        self.log_id = bytes.fromhex(store.log.log_id)
        data_path.close()

    def messages(self, chunk: int = 10**6) -> list[LeaderMessage]:
        """What a leader sends to an empty follower."""
        found: list[LeaderMessage] = [FormatSettings(5, 10**15), OpenTopic(1, "t", self.log_id)]
        for name in self.files.list_names(FOLDER):
            data = content(self.files, f"{FOLDER}/{name}")
            first_seq, generation = maybe_segment_seq(name), maybe_generation(name)
            for at in range(0, len(data), chunk):
                if first_seq is not None:
                    found.append(Batches(1, first_seq, at, data[at : at + chunk]))
                if generation is not None:
                    found.append(Journal(1, generation, at, data[at : at + chunk]))
        return [*found, MetadataFile(b"{}")]


@pytest.fixture
def source() -> Source:
    return Source()


class Copy:
    """A copy, and what it has reported."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_folder("data")
        self.issues: list[Issue] = []
        self.copy = self.open()

    def open(self) -> CopiedDataPath:
        self.copy = CopiedDataPath.open("data", self.files, self.issues.append)
        return self.copy

    def apply(self, *messages: LeaderMessage) -> None:
        for message in messages:
            self.copy.apply(message)

    def bodies(self) -> list[str]:
        """The messages that a takeover finds."""
        data_path = DataPath.open("data", SMALL, self.files)
        store, issues = data_path.open_topic("t", wall_ns=WALL_NS)
        assert not any(issue.is_damage for issue in issues)
        found = read_all(store.log)
        data_path.close()
        return found


@pytest.fixture
def follower() -> Copy:
    return Copy()


@pytest.mark.parametrize("chunk", [1, 7, 60, 100, 10**6])
def test_copy_has_the_same_files(source: Source, follower: Copy, chunk: int) -> None:
    follower.apply(*source.messages(chunk))
    follower.copy.close()

    names = [name for name in source.files.list_names(FOLDER) if not name.endswith(".index")]
    for name in names:
        path = f"{FOLDER}/{name}"
        assert content(source.files, path) == content(follower.files, path), name
    assert b"{}" == content(follower.files, "data/nsqd.dat")
    assert b"node 5\nreserved below 1000000000000000\n" in (
        content(follower.files, "data/penstock.format")
    )
    assert list("abcde") == follower.bodies()
    assert [] == follower.issues


def test_copy_that_is_opened_again_knows_what_it_has(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages())
    before = follower.copy.topics()
    follower.copy.close()

    assert before == follower.open().topics()
    (topic,) = before
    assert ("t", source.log_id) == (topic.name, topic.log_id)
    assert [SEQ, SEQ + 3] == [segment.first_seq for segment in topic.segments]
    assert SEQ + 5 == topic.segments[-1].next_seq


@pytest.mark.parametrize("kept", range(14))
def test_process_killed_after_any_message(source: Source, kept: int) -> None:
    messages = source.messages(80)
    follower = Copy()
    follower.apply(*messages[:kept])
    follower.copy.abandon()
    before = follower.open().topics()

    follower.copy.abandon()
    assert before == follower.open().topics()


def test_power_loss_keeps_what_was_synced(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages())
    follower.copy.sync_now()
    synced = follower.copy.topics()
    follower.copy.abandon()
    follower.files.crash()

    assert synced == follower.open().topics()


def test_incomplete_end_of_an_earlier_connection_is_forgotten(
    source: Source, follower: Copy
) -> None:
    """The new leader sends what the files lack, including the incomplete batch."""
    messages = source.messages(30)
    first_batches = next(at for at, each in enumerate(messages) if isinstance(each, Batches))
    follower.apply(*messages[: first_batches + 1])

    follower.copy.start_stream()
    follower.apply(*source.messages())
    follower.copy.close()

    assert list("abcde") == follower.bodies()


@pytest.mark.parametrize("seed", range(5))
def test_fsync_after_a_restart_covers_the_names_of_files(
    source: Source, follower: Copy, seed: int
) -> None:
    follower.files.sync_folder("")
    follower.apply(*source.messages())
    follower.files.crash()
    follower.open().sync_now()
    synced = follower.copy.topics()

    follower.files.lose_power(Random(seed))
    assert synced == follower.open().topics()


@pytest.mark.parametrize("seed", range(5))
def test_fsync_after_a_failed_one_writes_the_data_again(source: Source, seed: int) -> None:
    """The system treats data whose fsync has failed as written."""
    disk = MemoryFiles()
    disk.make_folder("data")
    disk.sync_folder("")
    files = FaultyFiles(disk)
    copy = CopiedDataPath.open("data", files, lambda _: None)
    for message in source.messages():
        copy.apply(message)
    files.fail("sync", times=None)
    with pytest.raises(StorageError):
        copy.sync_now()
    copy.abandon()
    files.heal()
    copy = CopiedDataPath.open("data", files, lambda _: None)
    copy.sync_now()
    synced = copy.topics()

    disk.lose_power(Random(seed))
    assert synced == CopiedDataPath.open("data", files, lambda _: None).topics()


@pytest.mark.parametrize("changes", range(8))
def test_first_start_can_be_interrupted(changes: int) -> None:
    disk = MemoryFiles()
    disk.make_folder("data")
    files = FaultyFiles(disk)
    files.crash_after(changes)
    with pytest.raises(SimulatedCrash):
        CopiedDataPath.open("data", files, lambda _: None).close()
    disk.crash()
    files.heal()

    assert [] == CopiedDataPath.open("data", files, lambda _: None).topics()


@pytest.mark.parametrize(
    "wrong",
    [
        Batches(1, SEQ, 41, b"x"),
        Batches(1, SEQ + 3, 1000, b"x"),
        Batches(2, SEQ, 0, b"x"),
        Journal(1, 1, 10**6, b"x"),
        OpenTopic(1, "t", bytes(16)),
    ],
)
def test_message_that_does_not_fit_is_refused(
    source: Source, follower: Copy, wrong: LeaderMessage
) -> None:
    follower.apply(*source.messages())
    before = follower.copy.topics()

    with pytest.raises(ReplicationError):
        follower.apply(wrong)
    assert before == follower.copy.topics()


@pytest.mark.parametrize("at", [0, 10, 30, 41, 60, 99, 100, 120, 150])
def test_damaged_batches_are_not_written(source: Source, follower: Copy, at: int) -> None:
    for message in source.messages():
        if isinstance(message, Batches) and message.first_seq == SEQ:
            data = bytearray(message.data)
            data[at] ^= 1
            with pytest.raises(ReplicationError):
                follower.apply(Batches(1, SEQ, 0, bytes(data)))
            break
        follower.apply(message)

    assert [] == follower.copy.topics()[0].segments


def test_cut_end_of_a_segment_is_kept_aside(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages())
    first, last = follower.copy.topics()[0].segments
    position = SEGMENT_AND_ONE_BATCH
    removed = content(follower.files, f"{FOLDER}/{last.first_seq:020}.log")[position:]
    follower.apply(CutSegment(1, last.first_seq, position))

    assert [first, SegmentState(SEQ + 3, 0, position, SEQ + 4)] == (
        follower.copy.topics()[0].segments
    )
    assert removed == content(follower.files, f"{FOLDER}/{last.first_seq:020}.log.cut")
    assert ["the leader does not have this; kept in a .cut file"] == [
        issue.problem for issue in follower.issues
    ]
    follower.copy.close()
    assert list("abcd") == follower.bodies()


SEGMENT_AND_ONE_BATCH = 40 + 56 + len(frames("d")[0])


def test_cut_segment_can_be_sent_again(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages())
    follower.apply(CutSegment(1, SEQ + 3, 0), CutSegment(1, SEQ, 0))
    assert [] == follower.copy.topics()[0].segments

    follower.apply(*[each for each in source.messages() if isinstance(each, Batches)])
    follower.copy.close()
    assert list("abcde") == follower.bodies()


def test_trimmed_segment_is_removed(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages(), RemoveSegment(1, SEQ), RemoveSegment(1, 12345))
    follower.copy.close()

    assert list("de") == follower.bodies()


def test_topic_is_removed_only_if_it_is_the_same_log(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages(), RemoveTopic("t", bytes(16)))
    assert 1 == len(follower.copy.topics())

    follower.apply(RemoveTopic("t", source.log_id))
    assert [] == follower.copy.topics()
    assert [] == follower.files.list_names("data/topics")


def test_journal_that_diverged_is_replaced(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages())
    (journal,) = (each for each in source.messages() if isinstance(each, Journal))
    state = follower.copy.topics()[0].journal
    follower.apply(Journal(1, journal.generation, 0, journal.data))

    assert state == follower.copy.topics()[0].journal


def test_journal_of_a_new_leader_may_have_a_lower_number(source: Source, follower: Copy) -> None:
    """The number is counted by each leader."""
    follower.apply(*source.messages())
    (journal,) = (each for each in source.messages() if isinstance(each, Journal))
    follower.apply(Journal(1, journal.generation + 5, 0, journal.data))
    follower.apply(Journal(1, journal.generation, 0, journal.data))
    follower.files.crash()

    found = follower.open().topics()[0].journal
    assert found is not None
    assert journal.generation == found.generation


@pytest.mark.parametrize("at", [50, 120, 190])
def test_damage_in_the_unsynced_part_is_fetched_again(
    source: Source, follower: Copy, at: int
) -> None:
    follower.apply(*source.messages())
    follower.copy.abandon()
    follower.files.open(f"{FOLDER}/{SEQ:020}.log", "write").write(b"\xff\xff", at)
    follower.open()

    first = follower.copy.topics()[0].segments[0]
    assert first.first_seq != SEQ or first.end <= at
    assert ["the end is not valid; it is fetched again from the leader"] == [
        issue.problem for issue in follower.issues
    ]
    for message in source.messages():
        if isinstance(message, OpenTopic):
            follower.apply(message)
        if isinstance(message, Batches) and message.first_seq == SEQ:
            end = first.end if first.first_seq == SEQ else 0
            follower.apply(Batches(1, SEQ, end, message.data[end:]))
    follower.copy.close()
    assert list("abcde") == follower.bodies()


def test_forced_leader_uses_no_number_twice(source: Source, follower: Copy) -> None:
    """The copy lacks the last messages, whose numbers readers may have stored."""
    follower.apply(*source.messages(), CutSegment(1, SEQ + 3, 0), FormatSettings(5, SEQ + 1000))
    follower.copy.close()
    data_path = DataPath.open(
        "data", SMALL, follower.files, epoch=2, observer=None, may_lack_messages=True
    )
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)

    assert list("abc") == read_all(store.log)
    assert SEQ + 1000 == store.log.next_seq
    data_path.close()


def test_new_journal_may_begin_before_the_old_one_was_sent_completely(
    source: Source, follower: Copy
) -> None:
    follower.apply(*source.messages())
    (journal,) = (each for each in source.messages() if isinstance(each, Journal))
    follower.apply(Journal(1, journal.generation, len(journal.data), journal.data[:10]))
    follower.apply(Journal(1, journal.generation + 1, 0, journal.data))

    found = follower.copy.topics()[0].journal
    assert found is not None
    assert (journal.generation + 1, len(journal.data)) == (found.generation, found.end)


def test_end_of_an_fsync_does_not_remove_a_journal_that_has_arrived_meanwhile(
    source: Source, follower: Copy
) -> None:
    follower.apply(*source.messages())
    (journal,) = (each for each in source.messages() if isinstance(each, Journal))
    follower.copy.close()
    newer = follower.files.open(f"{FOLDER}/{cursors_name(journal.generation + 1)}", "create")
    newer.write(journal.data, 0)
    copy = follower.open()
    copy.apply(OpenTopic(1, "t", source.log_id))
    job = copy.begin_sync()
    copy.apply(Journal(1, journal.generation, 0, journal.data))
    job.run()
    copy.end_sync(job, None)
    follower.files.crash()

    found = follower.open().topics()[0].journal
    assert found is not None
    assert journal.generation == found.generation


def test_topic_is_deleted_while_it_is_fsynced(source: Source, follower: Copy) -> None:
    follower.apply(*source.messages())
    job = follower.copy.begin_sync()
    follower.apply(RemoveTopic("t", source.log_id))
    job.run()
    follower.copy.end_sync(job, None)

    assert [] == follower.copy.topics()
