"""Group commit: fsyncs run in threads; a request succeeds only after an fsync that covers it."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.storage.frames import WALL_NS, frames, open_topic

from penstock.common.errors import InternalError, StorageError
from penstock.storage import DataPath, GroupCommit, LogSettings, TopicStore, fsync
from penstock.storage.fsync import RUNNING_MAX, FsyncCallback
from penstock.testing import FaultyFiles, MemoryFiles
from penstock.testing.waiting import wait_until

TIMEOUT_SECONDS = 60.0


class Owner:
    """The thread of the test, in place of an event loop."""

    def __init__(self, *, sync_every: int = 2500) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.sync_seconds: list[float] = []
        self.bugs: list[tuple[str, Exception]] = []
        self.commit = GroupCommit(
            self._calls.put,
            self._call_later,
            sync_every=sync_every,
            observe_seconds=self.sync_seconds.append,
            report_bug=lambda doing, bug: self.bugs.append((doing, bug)),
        )

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, self._calls.put, [call])
        timer.daemon = True
        timer.start()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Run the scheduled calls in this thread until `is_done`."""
        while not is_done():
            self._calls.get(timeout=TIMEOUT_SECONDS)()

    def run_remaining(self) -> None:
        while not self._calls.empty():
            self._calls.get()()


class HeldDisk(MemoryFiles):
    """A disk whose fsyncs wait while it is `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.make_folder("data")
        self.go = threading.Event()
        self.go.set()
        self.syncs = 0
        self.has_begun = threading.Event()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.has_begun.clear()
        self.go.clear()
        yield
        self.go.set()

    def sync_folder(self, path: str) -> None:
        self.syncs += 1
        self.has_begun.set()
        assert self.go.wait(TIMEOUT_SECONDS)
        super().sync_folder(path)


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.commit.close()
    owner.run_remaining()


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
def store(disk: HeldDisk) -> TopicStore:
    return open_topic(disk)[1]


def test_fsync_covers_messages_appended_before_the_request(owner: Owner, store: TopicStore) -> None:
    outcomes: list[StorageError | None] = []
    store.log.append(frames("a"), WALL_NS)
    owner.commit.request(store.log, outcomes.append)
    assert store.log.synced_seq < store.log.next_seq

    owner.run_until(lambda: bool(outcomes))

    assert [None] == outcomes
    assert store.log.next_seq == store.log.synced_seq


def test_many_requests_keep_few_files_open(owner: Owner, disk: HeldDisk) -> None:
    data_path = DataPath.open("data", LogSettings(open_files_max=8), disk)
    logs = [data_path.open_topic(f"t{number}", wall_ns=WALL_NS)[0].log for number in range(300)]
    outcomes: list[StorageError | None] = []
    open_counts: list[int] = []

    def done(outcome: StorageError | None) -> None:
        outcomes.append(outcome)
        open_counts.append(len(data_path._pool))

    for log in logs:
        log.append(frames("a"), WALL_NS)
        owner.commit.request(log, done)
    owner.run_until(lambda: len(outcomes) == len(logs))

    assert {None} == set(outcomes)
    assert [] == [log for log in logs if log.needs_sync]
    assert max(open_counts) <= RUNNING_MAX + 8


def test_callbacks_run_in_the_owners_thread(owner: Owner, store: TopicStore) -> None:
    threads: list[int] = []
    owner.commit.request(store.log, lambda _: threads.append(threading.get_ident()))
    owner.run_until(lambda: bool(threads))

    assert [threading.get_ident()] == threads


def test_requests_during_an_fsync_share_the_next_one(
    owner: Owner, disk: HeldDisk, store: TopicStore
) -> None:
    order: list[str] = []

    def record(name: str) -> FsyncCallback:
        return lambda _: order.append(name)

    store.log.append(frames("a"), WALL_NS)
    with disk.held():
        owner.commit.request(store.log, record("first"))
        assert disk.has_begun.wait(TIMEOUT_SECONDS)
        synced = disk.syncs
        for name in ("second", "third", "fourth"):
            store.log.append(frames(name), WALL_NS)
            owner.commit.request(store.log, record(name))
    owner.run_until(lambda: "first" in order)
    assert ["first"] == order
    assert 3 == store.log.next_seq - store.log.synced_seq

    owner.run_until(lambda: "fourth" in order)
    assert ["first", "second", "third", "fourth"] == order
    assert store.log.next_seq == store.log.synced_seq
    assert synced <= disk.syncs <= synced + 2


def test_different_logs_are_synced_at_the_same_time(owner: Owner, disk: HeldDisk) -> None:
    data_path = DataPath.open("data", LogSettings(), disk)
    logs = [data_path.open_topic(name, wall_ns=WALL_NS)[0].log for name in "abcd"]
    logs[0].append(frames("a"), WALL_NS)  # reserves sequence numbers, with an fsync
    done: list[object] = []
    synced = disk.syncs
    with disk.held():
        for log in logs:
            log.append(frames("a"), WALL_NS)
            owner.commit.request(log, done.append)
        wait_until(lambda: disk.syncs - synced == len(logs), "every fsync to begin")

        assert [] == done
    owner.run_until(lambda: len(done) == len(logs))

    assert [None] * len(logs) == done


def test_waiting_logs_are_synced_in_order_of_request(owner: Owner, disk: HeldDisk) -> None:
    data_path = DataPath.open("data", LogSettings(), disk)
    count = 3 * RUNNING_MAX
    logs = [data_path.open_topic(f"t{each}", wall_ns=WALL_NS)[0].log for each in range(count)]
    logs[0].append(frames("a"), WALL_NS)  # reserves sequence numbers, with an fsync
    done: list[object] = []
    with disk.held():
        for log in logs:
            log.append(frames("a"), WALL_NS)
            owner.commit.request(log, done.append)
        begun = [log for log in logs if log.sync_requested_seq == log.next_seq]

        assert logs[:RUNNING_MAX] == begun
    owner.run_until(lambda: len(done) == count)


@pytest.mark.parametrize("step", ["begin_sync", "end_sync"])
def test_unexpected_exception_fails_only_its_request(
    owner: Owner, disk: HeldDisk, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(fsync, "RETRY_SECONDS", 0.01)
    data_path = DataPath.open("data", LogSettings(), disk)
    faulty, good = (data_path.open_topic(name, wall_ns=WALL_NS)[0].log for name in "ab")
    outcomes: dict[str, StorageError | None] = {}
    bug = AssertionError("injected")

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise bug

    monkeypatch.setattr(faulty, step, fail)
    for name, log in (("faulty", faulty), ("good", good)):
        log.append(frames("a"), WALL_NS)
        owner.commit.request(log, partial(outcomes.__setitem__, name))
    owner.run_until(lambda: len(outcomes) == 2)

    assert isinstance(outcomes["faulty"], InternalError)
    assert None is outcomes["good"]
    assert [bug] == [each for _, each in owner.bugs]
    owner.commit.request(faulty, partial(outcomes.__setitem__, "again"))
    owner.run_until(lambda: "again" in outcomes)
    assert None is outcomes["again"]
    assert faulty.next_seq == faulty.synced_seq


def test_duration_of_each_fsync_is_observed(
    owner: Owner, disk: HeldDisk, store: TopicStore
) -> None:
    store.log.append(frames("a"), WALL_NS)
    with disk.held():
        started_at = time.monotonic()
        owner.commit.request(store.log)
        assert disk.has_begun.wait(TIMEOUT_SECONDS)
        time.sleep(0.01)
    owner.run_until(lambda: bool(owner.sync_seconds))

    (seconds,) = owner.sync_seconds
    assert 0.01 <= seconds <= time.monotonic() - started_at


def test_log_and_cursors_are_synced_concurrently(owner: Owner, disk: HeldDisk) -> None:
    data_path = DataPath.open("data", LogSettings(), disk)
    stores = [data_path.open_topic(name, wall_ns=WALL_NS)[0] for name in "abc"]
    done: list[object] = []
    for store in stores:
        store.log.append(frames("a"), WALL_NS)
        owner.commit.request(store.log, done.append)
        owner.commit.request(store.cursors, done.append)
    owner.run_until(lambda: len(done) == 6)

    assert [None] * 6 == done
    assert all(store.log.synced_seq == store.log.next_seq for store in stores)


def test_callback_may_request_another_fsync(owner: Owner, store: TopicStore) -> None:
    rounds: list[None] = []

    def again(_: StorageError | None) -> None:
        rounds.append(None)
        if len(rounds) < 5:
            owner.commit.request(store.log, again)

    owner.commit.request(store.log, again)
    owner.run_until(lambda: len(rounds) == 5)


class TestFailures:
    @pytest.fixture
    def files(self, memory_files: MemoryFiles) -> FaultyFiles:
        return FaultyFiles(memory_files)

    @pytest.fixture
    def store(self, files: FaultyFiles) -> TopicStore:
        return open_topic(files)[1]

    @pytest.fixture(autouse=True)
    def short_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fsync, "RETRY_SECONDS", 0.01)

    def test_failed_fsync_is_reported_and_retried(
        self, owner: Owner, store: TopicStore, files: FaultyFiles
    ) -> None:
        outcomes: list[StorageError | None] = []
        store.log.append(frames("a"), WALL_NS)
        files.fail("sync", times=3)
        owner.commit.request(store.log, outcomes.append)
        owner.run_until(lambda: bool(outcomes))
        assert ["cannot sync data/topics/t: Input/output error"] == list(map(str, outcomes))
        assert store.log.needs_retry

        owner.run_until(lambda: not store.log.needs_retry)
        assert store.log.next_seq == store.log.synced_seq
        assert None is store.log.error

    def test_failed_fsync_of_cursors_is_retried(
        self, owner: Owner, store: TopicStore, files: FaultyFiles
    ) -> None:
        store.cursors.create("c", 0)
        files.fail("sync", times=2)
        owner.commit.request(store.cursors)
        owner.run_until(lambda: store.cursors.needs_retry)
        owner.run_until(lambda: not store.cursors.needs_retry)

        assert 1 == len([name for name in files.list_names("data/topics/t") if "cursors" in name])

    def test_removed_topic_is_not_retried(self, owner: Owner, files: FaultyFiles) -> None:
        data_path, store = open_topic(files)
        store.log.append(frames("a"), WALL_NS)
        outcomes: list[StorageError | None] = []
        owner.commit.request(store.log, outcomes.append)
        data_path.remove_topic("t")
        owner.run_until(lambda: bool(outcomes))

        assert not store.log.needs_retry

    def test_closed_log_is_not_synced(self, owner: Owner, files: FaultyFiles) -> None:
        data_path, store = open_topic(files)
        data_path.remove_topic("t")
        outcomes: list[StorageError | None] = []
        owner.commit.request(store.log, outcomes.append)
        owner.commit.request(store.cursors, outcomes.append)
        owner.run_until(lambda: len(outcomes) == 2)

        assert ["data/topics/t is closed"] * 2 == list(map(str, outcomes))

    def test_error_of_begin_sync_is_reported(
        self, owner: Owner, store: TopicStore, files: FaultyFiles
    ) -> None:
        store.cursors._files.abandon_current()
        files.fail("create", times=None)
        outcomes: list[StorageError | None] = []
        owner.commit.request(store.cursors, outcomes.append)
        assert [] == outcomes

        owner.run_until(lambda: bool(outcomes))
        assert ["cannot write to data/topics/t: Input/output error"] == list(map(str, outcomes))


def test_close_completes_running_and_waiting_requests(disk: HeldDisk, store: TopicStore) -> None:
    owner = Owner()
    done: list[object] = []
    store.log.append(frames("a"), WALL_NS)
    with disk.held():
        owner.commit.request(store.log, done.append)
        assert disk.has_begun.wait(TIMEOUT_SECONDS)
        store.log.append(frames("b"), WALL_NS)
        owner.commit.request(store.log, done.append)
        threading.Timer(0.01, disk.go.set).start()
        owner.commit.close()

    assert [None, None] == done
    assert store.log.next_seq == store.log.synced_seq
    owner.run_remaining()


def test_background_fsync_is_not_requested_with_sync_every_1() -> None:
    owner = Owner(sync_every=1)
    _, store = open_topic(HeldDisk())
    store.log.append(frames("a"), WALL_NS)

    assert not owner.commit.request_in_background(store.log)

    owner.commit.close()
    assert store.log.needs_sync


def test_background_fsync(owner: Owner, store: TopicStore) -> None:
    store.log.append(frames("a"), WALL_NS)

    assert owner.commit.request_in_background(store.log)

    owner.run_until(lambda: not store.log.needs_sync)


def test_only_unsynced_targets_are_fsynced(owner: Owner, store: TopicStore) -> None:
    store.cursors.sync()
    store.log.append(frames("a"), WALL_NS)

    owner.commit.request_if_unsynced(store.log, store.cursors)

    owner.run_until(lambda: not store.log.needs_sync)
    assert 1 == len(owner.sync_seconds)
