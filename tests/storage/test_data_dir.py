"""Opening, checking, closing and recovering a data path; its format file."""

import errno
import os
import resource
import shutil
from pathlib import Path
from random import Random

import pytest
from google_crc32c import value as crc32c
from tests.storage.frames import WALL_NS, frames, open_topic, read_all

from penstock.common.errors import DataPathError, StorageError
from penstock.common.node_id import former_node_id
from penstock.storage import DataPath, LogSettings, RealFiles
from penstock.storage.data_dir import FormatFile, read_format_file, write_format_file
from penstock.storage.topic_storage import LastShutdown
from penstock.testing import FaultyFiles, MemoryFiles, SimulatedCrash
from penstock.testing.files import Operation

SETTINGS = LogSettings()
DAMAGED = (
    "data/penstock.format is damaged: its checksum does not match; restore it from a backup, or "
    "follow 'A damaged format file' in the documentation"
)
NAMES = ["a", "A", ".", "..", "Orders.v1", "x" * 64]


def tree(path: str) -> list[str]:
    """All files and folders in a folder, with their contents."""
    return [
        f"{entry} {entry.read_bytes()!r}" if entry.is_file() else str(entry)
        for entry in sorted(Path(path).rglob("*"))
    ]


class TestOpenErrors:
    def open_error(self, path: str) -> str:
        before = tree(path)
        with pytest.raises(DataPathError) as raised:
            DataPath.open(path, SETTINGS)

        assert before == tree(path)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    def test_locked_by_another_process(self, data_path: str) -> None:
        holder = RealFiles().lock(data_path)

        assert (
            f"failed to lock data-path: cannot flock directory {data_path} - Resource temporarily "
            "unavailable (possibly in use by another instance of nsqd)"
        ) == self.open_error(data_path)
        holder.close()

    def test_missing_folder(self, data_path: str) -> None:
        path = data_path + "/none"

        assert f"cannot open data path {path}: No such file or directory" == self.open_error(path)

    def test_path_is_a_file(self, data_path: str) -> None:
        path = data_path + "/file"
        Path(path).touch()

        assert f"cannot open data path {path}: Not a directory" == self.open_error(path)

    def test_newer_format(self, data_path: str) -> None:
        Path(data_path, "penstock.format").write_text("penstock data path\nformat 7\n")

        assert (
            f"data path {data_path} has format 7, written by a newer version; "
            "this one supports up to 2"
        ) == self.open_error(data_path)

    def test_queues_of_nsqs_nsqd(self, data_path: str) -> None:
        Path(data_path, "orders.diskqueue.000000.dat").touch()

        assert (
            f"data path {data_path} has foreign files: orders.diskqueue.000000.dat is a queue of "
            f"NSQ's nsqd; import it with 'penstock import {data_path} --data-path FOLDER'"
        ) == self.open_error(data_path)

    def test_topics_without_a_format_file(self, data_path: str) -> None:
        Path(data_path, "topics").mkdir()

        assert (
            f"data path {data_path} has foreign files: topics was not made by Penstock"
        ) == self.open_error(data_path)

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("topics/no topic/", "topics/no topic is not a topic"),
            ("topics/file", "topics/file is not a topic"),
            ("topics/t/notes.txt", "topics/t/notes.txt is not part of a log"),
        ],
    )
    def test_foreign_files_among_the_topics(self, data_path: str, name: str, why: str) -> None:
        DataPath.open(data_path, SETTINGS).close()
        path = Path(data_path, name)
        path.parent.mkdir(exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        else:
            path.touch()

        assert f"data path {data_path} has foreign files: {why}" == self.open_error(data_path)
        path.rmdir() if name.endswith("/") else path.unlink()

    @pytest.mark.parametrize("operation", ["create", "make_folder"])
    def test_read_only_data_path(self, memory_files: MemoryFiles, operation: str) -> None:
        files = FaultyFiles(memory_files)
        files.fail(operation, error=errno.EROFS)  # type: ignore[arg-type]
        with pytest.raises(DataPathError) as raised:
            DataPath.open("data", SETTINGS, files)

        assert "cannot write to data path data: Read-only file system" == str(raised.value)
        files.heal()
        DataPath.open("data", SETTINGS, files)

    def test_other_files_in_the_data_path_are_ignored(self, data_path: str) -> None:
        others = {"nsqd.dat", "notes.txt", "nsqd.0123.dat"}
        for name in others:
            Path(data_path, name).touch()
        opened = DataPath.open(data_path, SETTINGS)
        topics = list(opened.topics())
        opened.close()

        assert [] == topics
        assert others <= set(os.listdir(data_path))


class TestTopics:
    def test_every_valid_name_has_its_own_folder(self, data_path: str) -> None:
        opened = DataPath.open(data_path, SETTINGS)
        for name in NAMES:
            store, _ = opened.open_topic(name, wall_ns=WALL_NS)
            store.log.append(frames(name), WALL_NS)
        opened.close()

        opened = DataPath.open(data_path, SETTINGS)
        assert sorted(NAMES) == opened.topics()
        for name in NAMES:
            store, issues = opened.open_topic(name, wall_ns=WALL_NS)
            assert ([name], []) == (read_all(store.log), issues)
        opened.close()
        assert {"penstock.format", "topics"} == set(os.listdir(data_path))

    def test_creating_a_topic_takes_two_changes_and_no_sync(
        self, memory_files: MemoryFiles
    ) -> None:
        files = FaultyFiles(memory_files)
        opened = DataPath.open("data", SETTINGS, files)
        files.fail("sync", times=None)
        files.fail("sync_folder", times=None)
        changes = files.changes
        opened.open_topic("t", wall_ns=WALL_NS)

        # The folder, the journal's file, its first record.
        assert changes + 3 == files.changes

    def test_failed_creation_can_be_repeated(self, memory_files: MemoryFiles) -> None:
        files = FaultyFiles(memory_files)
        opened = DataPath.open("data", SETTINGS, files)
        operations: list[Operation] = ["make_folder", "create", "write"]
        for operation in operations:
            files.fail(operation, error=errno.ENOSPC)
            with pytest.raises(StorageError, match="No space left on device"):
                opened.open_topic("t", wall_ns=WALL_NS)
        store, issues = opened.open_topic("t", wall_ns=WALL_NS)
        store.log.append(frames("a"), WALL_NS)

        assert [] == issues
        assert ["a"] == read_all(store.log)

    def test_closed_topic_can_be_opened_again(self, memory_files: MemoryFiles) -> None:
        opened = DataPath.open("data", SETTINGS, memory_files)
        store, _ = opened.open_topic("t", wall_ns=WALL_NS)
        store.log.append(frames("a"), WALL_NS)
        store.close()
        store, _ = opened.open_topic("t", wall_ns=WALL_NS)

        assert ["a"] == read_all(store.log)

    @pytest.mark.parametrize("is_open", [True, False])
    def test_removed_topic_can_be_created_again(
        self, memory_files: MemoryFiles, is_open: bool
    ) -> None:
        opened, store = open_topic(memory_files)
        store.log.append(frames("a"), WALL_NS)
        if not is_open:
            store.close()
        opened.remove_topic("t")
        assert [] == opened.topics()
        assert [] == memory_files.list_names("data/topics")

        store, _ = opened.open_topic("t", wall_ns=WALL_NS + 5000)
        assert [] == read_all(store.log)
        assert WALL_NS // 1000 + 5 == store.log.next_seq

    @pytest.mark.parametrize("is_restarted", [False, True])
    @pytest.mark.parametrize("clock_set_ns", [-3600 * 10**9, 0], ids=["back", "not at all"])
    def test_topic_created_again_uses_new_sequence_numbers(
        self, memory_files: MemoryFiles, clock_set_ns: int, is_restarted: bool
    ) -> None:
        opened, store = open_topic(memory_files)
        store.log.append(frames("abc"), WALL_NS)
        opened.remove_topic("t")

        if is_restarted:
            opened.close()
            opened = DataPath.open("data", SETTINGS, memory_files)
        again, _ = opened.open_topic("t", wall_ns=WALL_NS + clock_set_ns)
        if is_restarted:
            assert store.log.next_seq < again.log.next_seq
        else:
            assert store.log.next_seq == again.log.next_seq

    def test_topic_ahead_of_the_clock_survives_a_power_loss(
        self, memory_files: MemoryFiles
    ) -> None:
        """Otherwise the next topic of this name would reuse its sequence numbers."""
        opened, store = open_topic(memory_files)
        store.log.append(frames("abc"), WALL_NS)
        opened.remove_topic("t")
        again, _ = opened.open_topic("t", wall_ns=WALL_NS)
        again.log.append(frames("d"), WALL_NS)
        memory_files.lose_power(Random(0))

        opened = DataPath.open("data", SETTINGS, memory_files)
        assert again.log.next_seq <= opened.open_topic("t", wall_ns=WALL_NS)[0].log.next_seq

    def test_topic_can_be_removed_on_a_full_disk(self, memory_files: MemoryFiles) -> None:
        files = FaultyFiles(memory_files)
        opened, store = open_topic(files)
        store.log.append(frames("abc"), WALL_NS)
        files.fail("create", times=None)
        opened.remove_topic("t")

        assert [] == memory_files.list_names("data/topics")

    def test_interrupted_removal_is_all_or_nothing(self) -> None:
        for changes in range(20):
            memory = MemoryFiles()
            memory.make_folder("data")
            files = FaultyFiles(memory)
            opened, store = open_topic(files)
            store.log.append(frames("a"), WALL_NS)
            files.crash_after(changes)
            try:
                opened.remove_topic("t")
            except SimulatedCrash:
                memory.crash()
                files.heal()
                opened = DataPath.open("data", SETTINGS, files)
                assert opened.topics() == memory.list_names("data/topics")
                if opened.topics():
                    store, _ = opened.open_topic("t", wall_ns=WALL_NS)
                    assert ["a"] == read_all(store.log)
            else:
                assert changes > 3
                return
        pytest.fail("the removal does not end")

    def test_next_start_completes_a_failed_removal(self, memory_files: MemoryFiles) -> None:
        files = FaultyFiles(memory_files)
        opened, store = open_topic(files)
        store.log.append(frames("a"), WALL_NS)
        files.fail("remove", skip=1)  # skip the removal of the format file
        with pytest.raises(StorageError, match="cannot remove data/topics/t: Input/output error"):
            opened.remove_topic("t")
        assert [] == opened.topics()

        opened.open_topic("t", wall_ns=WALL_NS)
        opened.remove_topic("t")
        assert [] == opened.topics()
        opened.close()
        DataPath.open("data", SETTINGS, memory_files).close()
        assert [] == memory_files.list_names("data/topics")


class TestClosing:
    def test_close_closes_all_topics_and_unlocks(self, data_path: str) -> None:
        opened = DataPath.open(data_path, SETTINGS)
        for name in "ab":
            store, _ = opened.open_topic(name, wall_ns=WALL_NS)
            store.log.append(frames(name), WALL_NS)
        opened.close()

        format_file = read_format_file(RealFiles(), data_path)
        assert format_file is not None
        assert not format_file.is_open
        RealFiles().lock(data_path).close()
        for name in "ab":
            assert [f"{WALL_NS // 1000:020}.index", f"{WALL_NS // 1000:020}.log", "cursors.1"] == (
                sorted(os.listdir(f"{data_path}/topics/{name}"))
            )

    def test_failed_sync_of_one_topic_does_not_affect_others(
        self, memory_files: MemoryFiles
    ) -> None:
        files = FaultyFiles(memory_files)
        opened = DataPath.open("data", SETTINGS, files)
        stores = [opened.open_topic(name, wall_ns=WALL_NS)[0] for name in "abc"]
        files.fail("sync", times=None)
        with pytest.raises(StorageError, match="cannot sync"):
            opened.close()

        assert all(store.is_closed for store in stores)
        format_file = read_format_file(memory_files, "data")
        assert format_file is not None
        assert format_file.is_open
        memory_files.lock("data")


class TestAfterAPowerLoss:
    @pytest.fixture
    def power_lost(self, memory_files: MemoryFiles) -> MemoryFiles:
        opened = DataPath.open("data", SETTINGS, memory_files)
        for name in "ab":
            opened.open_topic(name, wall_ns=WALL_NS)
        opened.close()
        write_format_file(memory_files, "data", FormatFile("another boot", is_open=True))
        return memory_files

    def skips_seqs(self, opened: DataPath, name: str) -> bool:
        _, issues = opened.open_topic(name, wall_ns=WALL_NS + 1_000_000)
        return bool(issues)

    def test_every_topic_skips_sequence_numbers(self, power_lost: MemoryFiles) -> None:
        opened = DataPath.open("data", SETTINGS, power_lost)

        assert self.skips_seqs(opened, "a")
        assert self.skips_seqs(opened, "b")

    def test_topics_not_opened_before_a_crash_skip_later(self, power_lost: MemoryFiles) -> None:
        self.skips_seqs(DataPath.open("data", SETTINGS, power_lost), "a")
        power_lost.crash()

        assert self.skips_seqs(DataPath.open("data", SETTINGS, power_lost), "b")

    def test_topics_not_opened_before_a_clean_shutdown_skip_later(
        self, power_lost: MemoryFiles
    ) -> None:
        DataPath.open("data", SETTINGS, power_lost).close()

        assert self.skips_seqs(DataPath.open("data", SETTINGS, power_lost), "b")

    def test_crash_after_all_topics_were_recovered_skips_nothing(
        self, power_lost: MemoryFiles
    ) -> None:
        opened = DataPath.open("data", SETTINGS, power_lost)
        for name in "ab":
            self.skips_seqs(opened, name)
        power_lost.crash()
        opened = DataPath.open("data", SETTINGS, power_lost)
        _, issues = opened.open_topic("a", wall_ns=WALL_NS + 2_000_000)

        assert [] == issues


class TestNodeId:
    def test_is_chosen_at_random(self, tmp_path: Path) -> None:
        node_ids = set()
        for at in range(8):
            (tmp_path / str(at)).mkdir()
            opened = DataPath.open(str(tmp_path / str(at)), SETTINGS)
            node_ids.add(opened.node_id)
            opened.close()

        assert node_ids <= set(range(1024))
        assert 1 < len(node_ids)

    @pytest.mark.parametrize("end", ["close", "crash", "power loss"])
    def test_survives_a_restart(self, memory_files: MemoryFiles, end: str) -> None:
        opened = DataPath.open("data", SETTINGS, memory_files)
        if end == "close":
            opened.close()
        elif end == "crash":
            memory_files.crash()
        else:
            memory_files.lose_power(Random(0))

        assert opened.node_id == DataPath.open("data", SETTINGS, memory_files).node_id

    @pytest.mark.parametrize("is_open", [False, True])
    def test_is_added_to_a_data_path_of_an_older_version(
        self, memory_files: MemoryFiles, is_open: bool
    ) -> None:
        opened, _ = open_topic(memory_files)
        opened.close()
        write_format_file(memory_files, "data", FormatFile("another-boot", is_open=is_open))
        opened = DataPath.open("data", SETTINGS, memory_files)
        memory_files.lose_power(Random(0))

        found = read_format_file(memory_files, "data")
        assert found is not None
        assert former_node_id() == opened.node_id == found.node_id
        # Topic t is not recovered yet: the file still records the earlier power loss.
        assert is_open == (found.boot_id == "another-boot")

    def test_data_path_of_a_shard_of_an_older_version(self, memory_files: MemoryFiles) -> None:
        memory_files.make_folder("data/shard-2")
        write_format_file(memory_files, "data/shard-2", FormatFile("b", is_open=False))

        opened = DataPath.open("data/shard-2", SETTINGS, memory_files)
        assert former_node_id(shard=2) == opened.node_id

    def test_change_is_stored_and_keeps_the_rest(self, memory_files: MemoryFiles) -> None:
        opened, store = open_topic(memory_files)
        store.log.append(frames("abc"), WALL_NS)
        opened.remove_topic("t")
        before = read_format_file(memory_files, "data")
        opened.change_node_id(set(range(1024)) - {5})
        memory_files.lose_power(Random(0))

        assert before is not None
        assert before._replace(node_id=5) == read_format_file(memory_files, "data")
        assert 5 == opened.node_id

    def test_change_before_recovery_keeps_the_power_loss(self, memory_files: MemoryFiles) -> None:
        opened, _ = open_topic(memory_files)
        opened.close()
        write_format_file(memory_files, "data", FormatFile("another-boot", is_open=True))
        opened = DataPath.open("data", SETTINGS, memory_files)
        opened.change_node_id({opened.node_id})

        expected = FormatFile("another-boot", is_open=True, node_id=opened.node_id)
        assert expected == read_format_file(memory_files, "data")

    def test_failed_change_keeps_the_old_one(self, memory_files: MemoryFiles) -> None:
        files = FaultyFiles(memory_files)
        opened = DataPath.open("data", SETTINGS, files)
        old = opened.node_id
        files.fail("create", error=errno.ENOSPC)
        with pytest.raises(StorageError, match="cannot write the node id to data: disk full"):
            opened.change_node_id({old})

        assert old == opened.node_id


def test_500_topics_with_few_open_files(data_path: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 80, hard))
    try:
        opened = DataPath.open(data_path, LogSettings(open_files_max=64))
        stores = [opened.open_topic(f"t{at}", wall_ns=WALL_NS)[0] for at in range(500)]
        for _ in range(3):
            for store in stores:
                store.log.append(frames("x"), WALL_NS)
        assert all(["x"] * 3 == read_all(store.log) for store in stores)
        for store in stores[::50]:
            store.log.sync()
        opened.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "format_file",
    [
        FormatFile("boot-1", is_open=True),
        FormatFile("b", is_open=False, node_id=0),
        FormatFile("b", is_open=False, reserved_below=7),
        FormatFile("b", is_open=False, node_id=1023, reserved_below=7),
    ],
)
def test_format_file_round_trip(memory_files: MemoryFiles, format_file: FormatFile) -> None:
    write_format_file(memory_files, "data", format_file)

    assert format_file == read_format_file(memory_files, "data")
    assert ["penstock.format"] == memory_files.list_names("data")


@pytest.mark.parametrize("bit", range(8))
def test_every_damaged_byte_of_the_format_file_is_detected(
    memory_files: MemoryFiles, bit: int
) -> None:
    write_format_file(memory_files, "data", FormatFile("b", is_open=False, node_id=5))
    file = memory_files.open("data/penstock.format", "write")
    for position in range(file.size()):
        original = file.read(position, 1)
        file.write(bytes([original[0] ^ 1 << bit]), position)
        with pytest.raises(DataPathError):
            read_format_file(memory_files, "data")
        file.write(original, position)


def test_lines_that_a_later_release_may_add_are_ignored(memory_files: MemoryFiles) -> None:
    text = "penstock data path\nformat 2\nboot b\nclosed\nnode 5\nreserved below 9\nsomething new\n"
    text += f"check {crc32c(text.encode()):08x}\n"
    memory_files.open("data/penstock.format", "create").write(text.encode(), 0)

    expected = FormatFile("b", is_open=False, node_id=5, reserved_below=9)
    assert expected == read_format_file(memory_files, "data")


def test_data_path_whose_damaged_format_file_was_replaced_is_usable(data_path: str) -> None:
    opened = DataPath.open(data_path, SETTINGS)
    store, _ = opened.open_topic("t", wall_ns=WALL_NS)
    store.log.append(frames("a", "b"), WALL_NS)
    used = store.log.next_seq
    opened.close()
    Path(data_path, "penstock.format").write_text("penstock data path\nformat 1\n")

    again = DataPath.open(data_path, SETTINGS)
    store, _ = again.open_topic("t", wall_ns=WALL_NS + 10**9)
    assert ["a", "b"] == read_all(store.log)
    assert used < store.log.next_seq
    again.close()
    DataPath.open(data_path, SETTINGS).close()


def test_copied_topic_is_refused(data_path: str) -> None:
    opened = DataPath.open(data_path, SETTINGS)
    opened.open_topic("t", wall_ns=WALL_NS)[0].log.append(frames("a"), WALL_NS)
    opened.close()
    shutil.copytree(f"{data_path}/topics/t", f"{data_path}/topics/copy")

    again = DataPath.open(data_path, SETTINGS)
    again.open_topic("copy", wall_ns=WALL_NS)
    with pytest.raises(StorageError, match="topics/t is a copy of topic copy: both have log id"):
        again.open_topic("t", wall_ns=WALL_NS)
    again.remove_topic("copy")
    store, _ = again.open_topic("t", wall_ns=WALL_NS)
    assert ["a"] == read_all(store.log)
    again.close()


def test_missing_format_file(memory_files: MemoryFiles) -> None:
    assert None is read_format_file(memory_files, "data")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "data/penstock.format is not a Penstock format file"),
        ("", "data/penstock.format is not a Penstock format file"),
        (
            "penstock data path\nformat 1\nboot b\nopen\nnode 1024\n",
            "data/penstock.format: the node id must be from 0 to 1023, not 1024",
        ),
        (
            "penstock data path\nformat 3\nsomething new\n",
            "data path data has format 3, written by a newer version; this one supports up to 2",
        ),
        ("penstock data path\nformat 2\nboot b\nopen\nnode 5\nreserved below 9\n", DAMAGED),
        ("penstock data path\nformat 2\nboot b\nopen\ncheck 00000000\n", DAMAGED),
    ],
)
def test_invalid_format_file(memory_files: MemoryFiles, text: str, message: str) -> None:
    memory_files.open("data/penstock.format", "create").write(text.encode(), 0)

    with pytest.raises(DataPathError) as raised:
        read_format_file(memory_files, "data")
    assert message == str(raised.value)


@pytest.mark.parametrize(
    ("format_file", "expected"),
    [
        (FormatFile("today", is_open=False), LastShutdown.CLEAN),
        (FormatFile("yesterday", is_open=False), LastShutdown.CLEAN),
        (FormatFile("today", is_open=True), LastShutdown.CRASH),
        (FormatFile("yesterday", is_open=True), LastShutdown.POWER_LOSS),
    ],
)
def test_last_shutdown(format_file: FormatFile, expected: LastShutdown) -> None:
    assert expected is format_file.last_shutdown("today")


def test_format_file_is_replaced_atomically(memory_files: MemoryFiles) -> None:
    old, new = FormatFile("old", is_open=False), FormatFile("new", is_open=True)
    files = FaultyFiles(memory_files)
    write_format_file(files, "data", old)
    for changes in range(6):
        files.crash_after(changes, written=7)
        try:
            write_format_file(files, "data", new)
        except SimulatedCrash:
            files.heal()
        assert read_format_file(files, "data") in (old, new)
    assert new == read_format_file(files, "data")
