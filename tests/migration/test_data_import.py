"""Data of NSQ's nsqd is imported completely or not at all, and its files are never changed."""

import json
from pathlib import Path

import pytest
from tests.migration.reference_files import OldMessage, meta, record, write_metadata, write_queue

from penstock.common.errors import DataPathError, StorageError
from penstock.migration import data_import
from penstock.migration.data_import import (
    ImportReport,
    finish_interrupted,
    import_data,
    scan_old_data,
)
from penstock.migration.queue_files import QueueName
from penstock.nsqd import metadata
from penstock.protocol import commands
from penstock.storage import RealFiles, TopicLog
from penstock.testing.nsqd import NsqdProcess, run_nsqd

# Larger than --max-msg-size, which limits only publishing.
LARGE = OldMessage(8, body=b"message 8 " + bytes(3_000_000))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    return folder


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def messages(first: int, end: int, attempts: int = 0) -> list[OldMessage]:
    return [OldMessage(number, attempts) for number in range(first, end)]


def run_import(old: Path, new: Path) -> ImportReport:
    return import_data(str(old), str(new), node_id=7, on_read=lambda _: None)


def delivered(nsqd: NsqdProcess, topic: str, channel: str, count: int) -> list[OldMessage]:
    """The messages that a consumer receives, without bodies; no others follow."""
    consumer = nsqd.consumer(topic, channel, rdy=2500)
    got = []
    for _ in range(count):
        message = consumer.message()
        consumer.send(commands.fin(message.id))
        number = int(message.body.split()[1])
        assert OldMessage(number).timestamp_ns == message.timestamp_ns
        assert message.body in {OldMessage(number).content, LARGE.content}
        got.append(OldMessage(number, (message.attempts - 1) & 0xFFFF))
    assert consumer.is_silent(seconds=0.02)
    consumer.close()
    return got


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_channel_keeps_its_messages_in_order_with_attempts(old: Path, new: Path) -> None:
    """The data path has partly consumed queues, requeued messages, many files, a paused topic, a
    topic without channels, and a channel that has finished all messages.
    """
    queues = {
        "billing": [*messages(50, 400), *messages(3, 6, attempts=2)],
        "audit": [*messages(200, 400), OldMessage(7, 65_535), LARGE, *messages(90, 95)],
        "idle": [],
    }
    write_metadata(
        old,
        {"Orders": list(queues), "paused": ["c"], "alone": [], "..": ["x"]},
        paused="paused",
    )
    write_queue(old, "Orders:billing", queues["billing"], per_file=64, read=100)
    write_queue(old, "Orders:audit", queues["audit"], per_file=1000)
    write_queue(old, "Orders:idle", messages(0, 128), per_file=64, read=128)
    write_queue(old, "Orders", messages(400, 420))
    write_queue(old, "paused", messages(10, 15))
    write_queue(old, "paused:c", messages(0, 10))
    write_queue(old, "alone", messages(0, 5))
    before = content_of(old)
    found = run_import(old, new)

    assert found.is_complete
    assert [] == [*found.notes, *(note for report in found.reports for note in report.notes)]
    assert before == content_of(old)
    assert ["nsqd.dat", "penstock.format", "topics"] == sorted(
        content.name for content in new.iterdir()
    )
    waiting = messages(400, 420)
    with run_nsqd("--node-id=7", data_path=new) as nsqd:
        for channel, queue in queues.items():
            expected = [*(queue[100:] if channel == "billing" else queue), *waiting]
            got = delivered(nsqd, "Orders", channel, len(expected))
            assert [(each.number, each.attempts) for each in expected] == [
                (each.number, each.attempts) for each in got
            ]
        assert messages(0, 10) == delivered(nsqd, "paused", "c", 10)
        nsqd.post("/topic/unpause?topic=paused")
        assert messages(10, 15) == delivered(nsqd, "paused", "c", 5)
        assert messages(0, 5) == delivered(nsqd, "alone", "first", 5)
        assert 0 == nsqd.stats("..", "x")["depth"]


@pytest.mark.parametrize("given", [None, 7])
def test_ids_have_the_node_id_given_or_that_of_the_new_data_path(
    old: Path, new: Path, given: int | None
) -> None:
    write_metadata(old, {"t": ["c"]})
    write_queue(old, "t:c", messages(0, 5))
    import_data(str(old), str(new), node_id=given, on_read=lambda _: None)

    with run_nsqd(data_path=new) as nsqd:
        stored = nsqd.http("GET", "/info").json()["node_id"]
        message = nsqd.consumer("t", "c", rdy=1).message()
        assert (stored if given is None else given) == int(message.id, 16) >> 54


def test_a_message_of_several_channels_is_stored_once(old: Path, new: Path) -> None:
    channels = [f"c{number}" for number in range(10)]
    write_metadata(old, {"t": channels}, paused="t:c3")
    for number, channel in enumerate(channels):
        write_queue(old, f"t:{channel}", messages(0, 1000), read=100 * number)
    run_import(old, new)
    with run_nsqd(data_path=new) as nsqd:
        described = nsqd.http("GET", "/topic/log?topic=t").json()
        channel_stats = nsqd.stats("t")["channels"]

    assert 1000 == described["next_seq"] - described["first_seq"]
    assert [1000 - 100 * number for number in range(10)] == [
        each["depth"] for each in channel_stats
    ]
    assert [number == 3 for number in range(10)] == [each["paused"] for each in channel_stats]


def test_after_a_crash_of_the_old_nsqd_all_acknowledged_messages_are_imported(
    old: Path, new: Path
) -> None:
    """`late` has records that its meta file does not count, `never` has no meta file, and `gone`
    had consumed a file when nsqd crashed.
    """
    write_metadata(old, {"late": [], "gone": []})
    write_queue(old, "late", messages(0, 3))
    with (old / "late.diskqueue.000000.dat").open("ab") as file:
        file.write(b"".join([record(OldMessage(3)), record(OldMessage(4))[:-1]]))
    (old / "late.diskqueue.000001.dat").write_bytes(record(OldMessage(5)))
    write_queue(old, "gone", messages(0, 6), per_file=3)
    (old / "gone.diskqueue.000000.dat").unlink()
    write_queue(old, "never:c", messages(0, 2))
    (old / "never:c.diskqueue.meta.dat").unlink()
    found = run_import(old, new)

    reports = {str(report.queue): report for report in found.reports}
    assert (3, 5, 2) == (reports["late"].depth, reports["late"].found, reports["late"].late)
    assert [True] == [damage.is_leftover for damage in reports["late"].damage]
    assert ["file 000000 of gone is missing: consumed before a crash, or lost"] == (
        reports["gone"].notes
    )
    assert {"late": True, "gone": False, "never": True, "never:c": True} == {
        name: report.is_complete for name, report in reports.items()
    }
    assert [
        "topic never is not in nsqd.dat; added",
        "channel never:c is not in nsqd.dat; added",
    ] == found.notes
    with run_nsqd(data_path=new) as nsqd:
        assert [*messages(0, 4), OldMessage(5)] == delivered(nsqd, "late", "c", 5)
        assert messages(3, 6) == delivered(nsqd, "gone", "c", 3)
        assert messages(0, 2) == delivered(nsqd, "never", "c", 2)


def test_damaged_bytes_are_saved_and_cost_no_other_message(old: Path, new: Path) -> None:
    write_metadata(old, {"t": []})
    write_queue(old, "t", messages(0, 5))
    file = old / "t.diskqueue.000000.dat"
    damaged = bytearray(file.read_bytes())
    first, size = 2 * len(record(OldMessage(0))), len(record(OldMessage(2)))
    damaged[first + 20] ^= 0x80
    file.write_bytes(damaged)
    (old / "t.diskqueue.000009.dat.bad").write_bytes(b"")
    found = run_import(old, new)

    assert not found.is_complete
    (report,) = found.reports
    assert ["t.diskqueue.000009.dat.bad was marked bad by NSQ's nsqd; skipped"] == (report.notes)
    kept = {f"{file.name}.{first}-{first + size}": bytes(damaged[first : first + size])}
    assert kept == content_of(new / "import-damage")
    with run_nsqd(data_path=new) as nsqd:
        assert [OldMessage(n) for n in (0, 1, 3, 4)] == delivered(nsqd, "t", "c", 4)


def test_a_scan_writes_nothing(old: Path) -> None:
    write_metadata(old, {"t": ["c"]})
    write_queue(old, "t:c", messages(0, 5), read=2)
    before = content_of(old)
    found = scan_old_data(str(old), lambda _: None)

    assert {QueueName("t", "c"): (3, 3), QueueName("t", None): (None, 0)} == {
        report.queue: (report.depth, report.found) for report in found.reports
    }
    assert before == content_of(old)


def test_existing_topics_are_kept(old: Path, new: Path) -> None:
    new.mkdir()
    with run_nsqd(data_path=new) as nsqd:
        nsqd.publish("before", b"message 1")
    write_metadata(old, {"t": ["c"]}, paused="t:c")
    run_import(old, new)
    with run_nsqd(data_path=new) as nsqd:
        stats = nsqd.http("GET", "/stats?format=json").json()["topics"]

    assert [("before", 1), ("t", 0)] == [(each["topic_name"], each["depth"]) for each in stats]


class TestRefusals:
    def test_an_existing_topic_of_the_same_name_is_refused(self, old: Path, new: Path) -> None:
        write_metadata(old, {"t": []})
        run_import(old, new)
        before = (new / "nsqd.dat").read_bytes()

        with pytest.raises(DataPathError, match="already has the topic t"):
            run_import(old, new)
        assert before == (new / "nsqd.dat").read_bytes()

    def test_a_running_old_nsqd_is_refused(self, old: Path, new: Path) -> None:
        write_metadata(old, {"t": []})
        lock = RealFiles().lock(str(old))

        with pytest.raises(DataPathError, match="is in use: stop its nsqd first"):
            run_import(old, new)
        lock.close()

    def test_a_folder_without_nsqd_data_is_refused(self, old: Path, new: Path) -> None:
        with pytest.raises(DataPathError, match="has nothing of an nsqd"):
            run_import(old, new)
        assert not new.exists()


class TestInterruption:
    def test_an_import_interrupted_before_verification_starts_again(
        self, old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_metadata(old, {"one": [], "two": []})
        write_queue(old, "one", messages(0, 5))
        write_queue(old, "two", messages(0, 5))
        real_append = TopicLog.append

        def append(log: TopicLog, frames: list[bytes], timestamp_ns: int, due_ns: int = 0) -> None:
            if "/two" in log._folder:
                raise StorageError("No space left on device")
            real_append(log, frames, timestamp_ns, due_ns)

        with monkeypatch.context() as patch:
            patch.setattr(TopicLog, "append", append)
            with pytest.raises(StorageError, match="No space left"):
                run_import(old, new)
        assert ["penstock.format", "topics"] == sorted(path.name for path in new.iterdir())
        assert [] == list((new / "topics").iterdir())
        (new / "importing").mkdir()  # the state after a kill
        with run_nsqd(data_path=new) as nsqd:
            assert (
                "WARNING: an import was not finished: stop, and run 'penstock import'" in nsqd.log
            )
        assert [] == finish_interrupted(str(new))
        assert 10 == sum(report.found for report in run_import(old, new).reports)

    def test_an_import_interrupted_while_topics_are_moved_is_completed(
        self, old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_metadata(old, {"one": ["c"], "two": ["c"]})
        for topic in ("one", "two"):
            write_queue(old, f"{topic}:c", messages(0, 5))

        def fail(*_: object) -> None:
            raise StorageError("interrupted")

        with monkeypatch.context() as patch:
            patch.setattr(metadata, "encode", fail)
            patch.setattr(data_import, "_publish_topics", fail)
            with pytest.raises(StorageError):
                run_import(old, new)
        assert not (new / "importing").exists()
        with monkeypatch.context() as patch:
            patch.setattr(data_import, "_publish_topics", fail)
            with pytest.raises(StorageError):
                run_import(old, new)
        (new / "importing/topics/one").rename(new / "topics/one")

        assert ["one", "two"] == finish_interrupted(str(new))
        named = [topic["name"] for topic in json.loads((new / "nsqd.dat").read_text())["topics"]]
        assert ["one", "two"] == named
        with run_nsqd(data_path=new) as nsqd:
            assert messages(0, 5) == delivered(nsqd, "one", "c", 5)
            assert messages(0, 5) == delivered(nsqd, "two", "c", 5)


def test_an_invalid_meta_file_counts_as_missing(old: Path) -> None:
    write_queue(old, "t", messages(0, 3))
    (old / "t.diskqueue.meta.dat").write_text(meta(3, (0, 0), (0, 9))[:-5] + "x")
    (report,) = scan_old_data(str(old), lambda _: None).reports

    assert (None, 3) == (report.depth, report.found)
    assert report.notes[0].startswith("t has no valid meta file")
