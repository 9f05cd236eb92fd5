"""nsqd.dat, as nsqd writes and reads it."""

import json
import stat
from pathlib import Path

import pytest

from penstock.testing.nsqd import NsqdProcess, NsqdStartError, run_nsqd
from penstock.testing.waiting import wait_until

EMPTY = b'{"topics":null,"version":"1.3.0"}'


def nsqd_dat(data_path: Path) -> bytes:
    return (data_path / "nsqd.dat").read_bytes()


def write_nsqd_dat(data_path: Path, *topics: object) -> None:
    content = {"topics": topics, "version": "1.3.0"}
    (data_path / "nsqd.dat").write_text(json.dumps(content), encoding="utf-8")


def topic_names(nsqd: NsqdProcess) -> list[str]:
    topics = nsqd.http("GET", "/stats?format=json").json()["topics"]
    return [topic["topic_name"] for topic in topics]


def test_file_is_written_at_start(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path):
        assert EMPTY == nsqd_dat(tmp_path)


def test_the_bytes_equal_those_of_nsq(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        for topic in ("lonely", "r"):
            nsqd.post(f"/topic/create?topic={topic}")
        for channel in ("c", "paused"):
            nsqd.post(f"/channel/create?topic=r&channel={channel}")
        nsqd.post("/channel/pause?topic=r&channel=paused")
        nsqd.post("/topic/pause?topic=lonely")

    expected = (
        b'{"topics":[{"name":"lonely","paused":true,"channels":null},'
        b'{"name":"r","paused":false,"channels":[{"name":"c","paused":false},'
        b'{"name":"paused","paused":true}]}],"version":"1.3.0"}'
    )
    assert expected == nsqd_dat(tmp_path)


def test_file_is_private_and_no_temporary_file_remains(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")

    assert 0o600 == stat.S_IMODE((tmp_path / "nsqd.dat").stat().st_mode)
    assert [] == list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_a_pause_is_on_disk_before_the_response(tmp_path: Path, what: str) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        nsqd.post(f"/{what}/pause?topic=t&channel=c")
        content = nsqd_dat(tmp_path)
        nsqd.post(f"/{what}/unpause?topic=t&channel=c")

        assert 1 == content.count(b'"paused":true')
        assert 0 == nsqd_dat(tmp_path).count(b'"paused":true')


def test_created_and_deleted_topics_and_channels_are_saved_soon(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        wait_until(lambda: b'"name":"t"' in nsqd_dat(tmp_path), "the topic to be named")
        nsqd.post("/channel/create?topic=t&channel=c")
        wait_until(lambda: b'"name":"c"' in nsqd_dat(tmp_path), "the channel to be named")
        nsqd.post("/channel/delete?topic=t&channel=c")
        wait_until(lambda: b'"name":"c"' not in nsqd_dat(tmp_path), "the channel to be forgotten")
        nsqd.post("/topic/delete?topic=t")
        wait_until(lambda: nsqd_dat(tmp_path) == EMPTY, "the topic to be forgotten")


def test_ephemeral_topics_and_channels_are_not_saved(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=gone%23ephemeral")
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=gone%23ephemeral")
        nsqd.post("/channel/create?topic=gone%23ephemeral&channel=c")

    expected = (
        b'{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}'
    )  # fmt: skip
    assert expected == nsqd_dat(tmp_path)


def test_a_file_of_nsq_is_read(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(
        b'{"topics":[{"channels":[{"name":"c","paused":true}],"name":"r","paused":true}],'
        b'"version":"1.3.0"}'
    )
    with run_nsqd(data_path=tmp_path) as nsqd:
        topic = nsqd.stats("r")

    assert [True, True] == [topic["paused"], topic["channels"][0]["paused"]]


@pytest.mark.parametrize("kill", [False, True], ids=["clean stop", "kill"])
def test_topics_channels_and_pauses_survive_a_restart(tmp_path: Path, *, kill: bool) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        for name in ("t", "T", "..", "a.b_c-D"):
            nsqd.post(f"/topic/create?topic={name}")
            nsqd.post(f"/channel/create?topic={name}&channel=c")
        nsqd.post("/channel/create?topic=t&channel=paused")
        nsqd.post("/channel/pause?topic=t&channel=paused")
        nsqd.post("/topic/pause?topic=T")
        if kill:
            nsqd.kill()
        nsqd.restart()

        assert ["..", "T", "a.b_c-D", "t"] == topic_names(nsqd)
        assert {"c": False, "paused": True} == {
            channel["channel_name"]: channel["paused"] for channel in nsqd.stats("t")["channels"]
        }
        assert [True, False] == [nsqd.stats(name)["paused"] for name in ("T", "..")]


def test_a_channel_without_a_cursor_starts_at_the_start_of_the_log(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        nsqd.publish("t", b"one", b"two")
    stopped = nsqd_dat(tmp_path)
    channels = [{"name": "c", "paused": False}, {"name": "lost", "paused": False}]
    write_nsqd_dat(tmp_path, {"name": "t", "paused": False, "channels": channels})

    with run_nsqd(data_path=tmp_path) as nsqd:
        depths = {name: nsqd.stats("t", name)["depth"] for name in ("c", "lost")}

    assert b"lost" not in stopped
    assert {"c": 2, "lost": 2} == depths


def test_invalid_names_are_skipped_with_a_warning(tmp_path: Path) -> None:
    good = {"name": "good", "paused": False}
    write_nsqd_dat(
        tmp_path,
        {"name": "b$d", "paused": False, "channels": [good]},
        {**good, "channels": [{"name": "b/d", "paused": False}, good]},
        {"name": "../escape", "paused": False, "channels": None},
        {"name": "n" * 65, "paused": False, "channels": None},
    )
    with run_nsqd(data_path=tmp_path) as nsqd:
        assert ["good"] == topic_names(nsqd)
        assert ["good"] == [each["channel_name"] for each in nsqd.stats("good")["channels"]]

    warnings = [line.partition("WARNING: ")[2] for line in nsqd.log.splitlines() if "WARN" in line]
    assert [
        "skipping creation of invalid topic b$d",
        "skipping creation of invalid channel b/d",
        "skipping creation of invalid topic ../escape",
        f"skipping creation of invalid topic {'n' * 65}",
    ] == warnings


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"topics":"none"}', b'{"topics":[{}]}'])
def test_an_invalid_file_is_fatal_and_unchanged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nsqd.dat").write_bytes(content)
    with pytest.raises(NsqdStartError) as failure, run_nsqd(data_path=tmp_path):
        pass

    fatal = [line for line in failure.value.log.splitlines() if "FATAL" in line]
    assert 1 == failure.value.exit_code
    assert 1 == len(fatal), failure.value.log
    assert "failed to parse metadata in" in fatal[0]
    assert str(tmp_path) in fatal[0]
    assert "Traceback" not in failure.value.log
    assert content == nsqd_dat(tmp_path)
