"""Replays: order, rate limit, resumption, state file."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import history, publish

from penstock.common.errors import ConfigError, LakeError, NotConnectedError, PipelineError
from penstock.pipelines import replay as replay_module
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.chunk_publisher import ChunkPublisher, PendingChunk
from penstock.pipelines.lake import Lake
from penstock.pipelines.message_table import MessageKey, parse_time_ns
from penstock.pipelines.replay import (
    RateLimiter,
    Replay,
    ReplayConfig,
    ReplayState,
    ReplayStateFile,
    check_config,
)
from penstock.pipelines.running import Stop
from penstock.testing.nsqd import NsqdProcess
from pyspark_nsq.reader import ARROW_SCHEMA

EIGHT = datetime(2026, 11, 15, 8, tzinfo=UTC)
EIGHT_NS = int(EIGHT.timestamp()) * 10**9


class Killed(BaseException):
    """Stands for SIGKILL."""


def config(lake: Path | None, target: NsqdProcess, **options: Any) -> ReplayConfig:
    words = {"topic": "orders", "target": "again"} | options
    opened = None if lake is None else Lake.open(lake)
    folder = Path(words.pop("state_folder", None) or (lake or Path()) / "_replays")
    brokers = Brokers((target.http_address,))
    return ReplayConfig(brokers=brokers, lake=opened, state_folder=folder, **words)


def bodies(nsqd: NsqdProcess, topic: str) -> list[str]:
    return [message["body"] for message in history(nsqd, topic)]


def add(
    lake: Path, numbers: range, *, at_second: int | None = None, has_log_ids: bool = True
) -> None:
    """Write a lake like `penstock archive`: messages a second apart, of two nodes in turn,
    unsorted. Earlier versions did not write log ids."""
    first = numbers.start if at_second is None else at_second
    topic = Lake.create(lake).topic("orders")
    hour = topic.messages / "date=2026-11-15" / "hour=08"
    hour.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "log": f"{number % 2:032x}" if has_log_ids else None,
            "node": number % 2,
            "seq": number,
            "id": f"{number:016x}",
            "timestamp": EIGHT + timedelta(seconds=first + number - numbers.start),
            "timestamp_ns": EIGHT_NS + (first + number - numbers.start) * 10**9,
            "body": str(number).encode(),
        }
        for number in reversed(numbers)
    ]
    omitted = ("topic",) if has_log_ids else ("topic", "log")
    columns = pa.schema([field for field in ARROW_SCHEMA if field.name not in omitted])
    pq.write_table(pa.Table.from_pylist(rows, columns), hour / f"{numbers.start}.parquet")
    topic.state.mkdir(parents=True, exist_ok=True)
    logs = [f"{node:032x}" if has_log_ids else str(node) for node in range(2)]
    topic.committed.write_text(json.dumps({"next_seqs": dict.fromkeys(logs, numbers.stop)}))


def test_messages_are_published_once_and_in_order_despite_crashes(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashes between storing a chunk and recording it, and before sending one."""
    lake = tmp_path / "lake"
    add(lake, range(20), has_log_ids=False)
    add(lake, range(20, 40))
    wanted = config(lake, nsqd, end="2026-11-15T08:00:30Z", where="body not like '%5'")
    monkeypatch.setattr(replay_module, "CHUNK_MESSAGES", 4)
    send = ChunkPublisher.publish

    def dying(*, after_sending: bool) -> Any:
        calls = iter(range(2))

        def publish(self: ChunkPublisher, chunk: PendingChunk, bodies: Sequence[bytes]) -> None:
            is_killed = next(calls, None) is None
            if after_sending or not is_killed:
                send(self, chunk, bodies)
            if is_killed:
                raise Killed

        return publish

    for after_sending in (True, False):
        monkeypatch.setattr(ChunkPublisher, "publish", dying(after_sending=after_sending))
        with pytest.raises(Killed):
            Replay(spark, wanted).run(Stop())
    monkeypatch.setattr(ChunkPublisher, "publish", send)
    add(lake, range(40, 50), at_second=3)  # archived in the meantime, so not part of this replay
    last = Replay(spark, wanted)
    done = last.run(Stop())

    expected = [str(number) for number in range(30) if number % 10 != 5]
    assert expected == bodies(nsqd, "again")
    assert (True, 27, 27) == (last.is_resumed, done.done, done.messages)
    assert [] == list(Lake.open(lake).replays.iterdir())


def test_a_replay_of_an_earlier_version_is_resumed(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    add(lake, range(20), has_log_ids=False)
    wanted = config(lake, nsqd)
    publish(nsqd, "again", map(str, range(8)))
    first_seq = nsqd.http("GET", "/topic/log?topic=again").json()["first_seq"]
    state = {
        "ends": {"0": 20, "1": 20},
        "messages": 20,
        "done": 6,
        "key": [EIGHT_NS + 5 * 10**9, 1, 5],
        "sending": {"node_id": 1, "from_seq": first_seq + 6, "count": 2},
    }
    file = wanted.state_file()
    file.path.parent.mkdir(parents=True)
    file.path.write_text(json.dumps({"replay": {}, "state": state}))
    add(lake, range(20, 40), at_second=10)  # archived after the upgrade

    done = Replay(spark, wanted).run(Stop())

    assert list(map(str, range(20))) == bodies(nsqd, "again")
    assert (20, 20) == (done.done, done.messages)


def test_the_rate_limit_catches_up_by_at_most_one_second() -> None:
    pace = RateLimiter(50, 0.0)
    waits = []
    for now in (0.0, 0.0, 0.05, 10.0):
        waits.append(round(pace.seconds_to_wait(now), 9))
        pace.add(pace.chunk_messages)

    assert [0.0, 0.1, 0.15, 0.0] == waits
    assert 0.0 == RateLimiter(50, 0.0).seconds_to_wait(5.0)
    assert (5, 1000, 1) == tuple(RateLimiter(rate, 0.0).chunk_messages for rate in (50, 0, 3))
    pace.add(50)
    assert 0.1 == round(pace.seconds_to_wait(10.0), 9)


def test_a_replay_of_history_can_be_stopped_and_resumed(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(nsqd, "orders", map(str, range(30)))
    wanted = config(None, nsqd, state_folder=tmp_path)
    stop, send = Stop(), ChunkPublisher.publish

    def publish_and_stop(
        self: ChunkPublisher, chunk: PendingChunk, bodies: Sequence[bytes]
    ) -> None:
        send(self, chunk, bodies)
        stop.request()

    monkeypatch.setattr(replay_module, "CHUNK_MESSAGES", 15)
    with monkeypatch.context() as patch:
        patch.setattr(ChunkPublisher, "publish", publish_and_stop)
        left = Replay(spark, wanted).run(stop)
    assert (15, 30) == (left.done, left.messages)

    Replay(spark, wanted).run(Stop())
    assert [str(number) for number in range(30)] == bodies(nsqd, "again")


def test_invalid_options_are_rejected_before_publishing(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    add(lake, range(3))
    with pytest.raises(LakeError, match=r"topic nowhere is not in .*; topics: orders"):
        check_config(config(lake, nsqd, topic="nowhere"), dry_run=False)
    with pytest.raises(ConfigError, match="a time is required, not a sequence number"):
        check_config(config(lake, nsqd, start="17"), dry_run=False)
    with pytest.raises(ConfigError, match="is not after its start"):
        check_config(config(lake, nsqd, start="1h", end="2h"), dry_run=False)
    with pytest.raises(PipelineError, match="`colour` cannot be resolved"):
        Replay(spark, config(lake, nsqd, where="colour = 'red'"))
    nowhere = ReplayConfig(
        topic="orders",
        target="again",
        brokers=Brokers(("127.0.0.1:1",)),
        lake=Lake.open(lake),
        state_folder=lake,
    )
    with pytest.raises(NotConnectedError, match="Connection refused"):
        check_config(nowhere, dry_run=False)

    assert [] == bodies(nsqd, "again")


def test_times_are_parsed_as_by_the_other_commands() -> None:
    assert 1_794_787_200_250_000_000 == parse_time_ns("2026-11-16T00:00:00.25Z")
    assert 1_794_787_200_250_000_000 == parse_time_ns("1794787200250000000")
    assert parse_time_ns("earliest") is None


# State file.


STATE = ReplayState(
    ends={"a" * 32: 17},
    logs_by="log",
    messages=9,
    done=3,
    key=MessageKey(1_794_787_200_250_000_000, "a" * 32, 7),
    sending=PendingChunk(log_id="b" * 32, from_seq=5, count=2),
)


def test_a_state_file_round_trips(tmp_path: Path) -> None:
    ReplayStateFile(tmp_path, {"topic": "orders"}).save(STATE)

    assert STATE == ReplayStateFile(tmp_path, {"topic": "orders"}).load()
    assert ReplayStateFile(tmp_path, {"topic": "clicks"}).load() is None


def test_a_state_file_in_one_line_is_read(tmp_path: Path) -> None:
    file = ReplayStateFile(tmp_path, {"topic": "orders"})
    state = {"ends": {"1": 17}, "done": 3, "key": [1, 2, 3], "sending": None}
    file.path.write_text(json.dumps({"replay": {}, "state": state}, separators=(",", ":")))

    assert ReplayState(ends={"1": 17}, done=3, key=MessageKey(1, 2, 3)) == file.load()


def test_file_and_folder_are_synced_in_the_right_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, steps, sync, rename = ReplayStateFile(tmp_path, {}), [], os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        steps.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        sync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    file.save(STATE)

    assert [f"{file.path.name}.new", "rename", tmp_path.name] == steps


def test_an_unwritable_state_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"cannot write .* - No such file or directory"):
        ReplayStateFile(tmp_path / "gone", {}).save(STATE)
