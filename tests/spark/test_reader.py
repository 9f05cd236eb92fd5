"""Reading ranges, and decoding frames into Arrow batches."""

import io
import logging
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.tables import http_addresses, publish

from penstock.common.errors import CorruptStreamError
from penstock.protocol import frames
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until
from pyspark_nsq.errors import DataLossError, NodeUnavailableError
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.planning import Range, plan_partitions
from pyspark_nsq.reader import ARROW_SCHEMA, RangeReader, arrow_batches, read_partition

MEGABYTE = 1 << 20


def options(*nsqds: NsqdProcess, **more: str) -> SourceOptions:
    given = {"nsqd": http_addresses(*nsqds), "topic": "orders", "nodeTimeout": "3s", **more}
    return SourceOptions.parse({key: text for key, text in given.items() if text}, streaming=True)


def whole(nsqd: NsqdProcess) -> Range:
    """The range of the whole topic."""
    log = nsqd.http("GET", "/topic/log?topic=orders").json()
    return Range("orders", log["log_id"], log["first_seq"], log["next_seq"])


def reader(options: SourceOptions, wanted: Range, base: str = "") -> RangeReader:
    return RangeReader(options, Nodes(options.access), wanted, base)


def bodies(reader: RangeReader) -> Iterator[bytes]:
    for batch in reader.batches():
        yield from batch.column("body").to_pylist()


def test_reading_continues_after_a_restart_at_another_address() -> None:
    large = [bytes([number]) * MEGABYTE for number in range(1, 40)]
    with run_nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with run_nsqd("--node-id=1", *flags) as nsqd:
            nsqd.publish("orders", *large)
            wait_until(lambda: lookupd.found("orders"), "the topic to be known")
            chosen = options(nsqd="", lookupd=lookupd.http_address, nodeTimeout="20s")
            read = bodies(reader(chosen, whole(nsqd)))
            first = next(read)
            nsqd.kill()
            nsqd.restart()

            assert large == [first, *read]


@pytest.mark.parametrize("change", ["trimmed", "deleted", "forgotten"])
def test_lost_messages_fail_the_task_or_are_skipped(
    nsqd: NsqdProcess, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, "orders", ["a", "b", "c"])
    wanted, left = whole(nsqd), [b"a", b"b", b"c"]
    if change == "trimmed":
        wanted = wanted._replace(start=wanted.start - 5)
    elif change == "forgotten":
        wanted = wanted._replace(end=wanted.end + 5)
    else:
        nsqd.post("/topic/delete?topic=orders")
        left = []

    with pytest.raises(
        DataLossError, match=r"topic orders, log [0-9a-f]{8}: messages \d+ to \d+ are lost"
    ):
        list(bodies(reader(options(nsqd), wanted, f"http://{nsqd.http_address}")))
    with caplog.at_level(logging.ERROR, "pyspark_nsq"):
        lenient = options(nsqd, failOnDataLoss="false")
        assert left == list(bodies(reader(lenient, wanted, f"http://{nsqd.http_address}")))
    assert "are lost" in caplog.text


def test_an_unreachable_node_fails_the_task_after_the_timeout(nsqd: NsqdProcess) -> None:
    publish(nsqd, "orders", ["a"])
    wanted = whole(nsqd)
    chosen, lenient = options(nsqd), options(nsqd, failOnDataLoss="false")
    nsqd.kill()

    with pytest.raises(
        NodeUnavailableError,
        match=r"topic orders, log .*: the node was unreachable for 3 s: .*refused",
    ):
        list(bodies(reader(chosen, wanted)))
    assert [] == list(bodies(reader(lenient, wanted)))


def test_another_log_at_the_same_address_is_rejected(nsqd: NsqdProcess) -> None:
    publish(nsqd, "orders", ["a"])
    wanted = whole(nsqd)._replace(log_id="7" * 32)

    with pytest.raises(NodeUnavailableError, match="log 77777777 not found: no nsqd has this log"):
        list(bodies(reader(options(nsqd), wanted, f"http://{nsqd.http_address}")))


def test_a_range_of_an_earlier_version_is_found_by_the_node_id(nsqd: NsqdProcess) -> None:
    publish(nsqd, "orders", ["a"])
    wanted = whole(nsqd)

    (batch,) = reader(options(nsqd), wanted._replace(log_id="1")).batches()

    assert [(b"a", wanted.log_id)] == list(
        zip(batch["body"].to_pylist(), batch["log"].to_pylist(), strict=True)
    )


def test_one_task_reads_many_small_logs_of_several_nodes(
    nsqd: NsqdProcess, other_nsqd: NsqdProcess
) -> None:
    topics = [f"t{number}" for number in range(20)]
    for topic in topics:
        publish(nsqd, topic, [f"{topic} a", f"{topic} b"])
        publish(other_nsqd, topic, [f"{topic} c"])
    chosen = options(nsqd, other_nsqd, topic=",".join(topics))
    nodes = Nodes(chosen.access)
    logs = nodes.snapshot(chosen.topics).logs
    ranges = [Range(*key, found.log.first_seq, found.log.next_seq) for key, found in logs.items()]

    (task,) = plan_partitions(chosen, nodes, ranges, logs)

    read = [body for batch in read_partition(chosen, task) for body in batch["body"].to_pylist()]
    assert sorted(f"{topic} {each}".encode() for topic in topics for each in "abc") == sorted(read)


# Frames to Arrow batches.


LOG_ID = "0123456789abcdef" * 2
NODE, FIRST_SEQ, AT_NS = 1023, 1794784543198232, 1794784543198900249


def rendered(bodies: list[bytes], first_seq: int = FIRST_SEQ) -> bytes:
    return b"".join(frames.render_messages(bodies, NODE << 54 | first_seq, AT_NS))


def decoded_table(raw: bytes, buffer_bytes: int) -> pa.Table:
    batches = list(arrow_batches(io.BytesIO(raw), "orders", LOG_ID, buffer_bytes=buffer_bytes))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, ARROW_SCHEMA)


@given(
    sizes=st.lists(st.sampled_from([1, 5, 5, 5, 300]), max_size=60),
    buffer_bytes=st.integers(40, 2000),
    gap_after=st.integers(0, 60),
)
def test_every_frame_becomes_a_row(sizes: list[int], buffer_bytes: int, gap_after: int) -> None:
    bodies = [bytes([index]) * size for index, size in enumerate(sizes)]
    before, after = bodies[:gap_after], bodies[gap_after:]
    far_seq = FIRST_SEQ + 1000
    raw = b"".join(
        rendered(part, seq) for part, seq in ((before, FIRST_SEQ), (after, far_seq)) if part
    )

    table = decoded_table(raw, buffer_bytes)

    seqs = [FIRST_SEQ + i for i in range(len(before))] + [far_seq + i for i in range(len(after))]
    assert bodies == table["body"].to_pylist()
    assert seqs == table["seq"].to_pylist()
    assert [f"{NODE << 54 | seq:016x}" for seq in seqs] == table["id"].to_pylist()
    assert {"orders", LOG_ID, NODE, AT_NS} >= {
        *table["topic"].to_pylist(),
        *table["log"].to_pylist(),
        *table["node"].to_pylist(),
        *table["timestamp_ns"].to_pylist(),
    }
    assert {AT_NS // 1000} >= set(table["timestamp"].cast(pa.int64()).to_pylist())


def test_messages_from_before_and_after_a_change_of_the_node_id() -> None:
    raw = b"".join(
        each
        for node, seq in ((NODE, FIRST_SEQ), (5, FIRST_SEQ + 2))
        for each in frames.render_messages([b"a", b"b"], node << 54 | seq, AT_NS)
    )

    table = decoded_table(raw, 1000)

    assert [NODE, NODE, 5, 5] == table["node"].to_pylist()
    assert [FIRST_SEQ + at for at in range(4)] == table["seq"].to_pylist()


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (rendered([b"one"])[:-1], "36 bytes left over"),
        (frames.HEARTBEAT * 3, "is too short for a message"),
        (b"\0\0\0\x1e\0\0\0\x01" + bytes(26), "a frame is not a message"),
        (rendered([b"one"]).replace(b"f", b"g"), "is not a message id"),
    ],
)
def test_invalid_frames_are_rejected(raw: bytes, error: str) -> None:
    with pytest.raises(CorruptStreamError, match=error):
        decoded_table(raw, 1000)
