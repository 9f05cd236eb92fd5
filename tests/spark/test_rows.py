"""Frames become rows, however they are cut into pieces."""

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import CorruptStreamError
from penstock.protocol import frames
from pyspark_nsq.rows import ARROW_SCHEMA, arrow_batches

NODE, FIRST_SEQ, AT_NS = 1023, 1794784543198232, 1794784543198900249


def rendered(bodies: list[bytes], first_seq: int = FIRST_SEQ) -> bytes:
    return b"".join(frames.render_messages(bodies, NODE << 54 | first_seq, AT_NS))


def table_of(raw: bytes, piece_bytes: int) -> pa.Table:
    batches = list(arrow_batches(io.BytesIO(raw), "orders", piece_bytes=piece_bytes))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, ARROW_SCHEMA)


@given(
    sizes=st.lists(st.sampled_from([1, 5, 5, 5, 300]), max_size=60),
    piece_bytes=st.integers(40, 2000),
    gap_after=st.integers(0, 60),
)
def test_every_frame_is_a_row_with_its_address(
    sizes: list[int], piece_bytes: int, gap_after: int
) -> None:
    bodies = [bytes([index]) * size for index, size in enumerate(sizes)]
    before, after = bodies[:gap_after], bodies[gap_after:]
    far_seq = FIRST_SEQ + 1000
    raw = b"".join(
        rendered(part, seq) for part, seq in ((before, FIRST_SEQ), (after, far_seq)) if part
    )

    table = table_of(raw, piece_bytes)

    seqs = [FIRST_SEQ + i for i in range(len(before))] + [far_seq + i for i in range(len(after))]
    assert bodies == table["body"].to_pylist()
    assert seqs == table["seq"].to_pylist()
    assert [f"{NODE << 54 | seq:016x}" for seq in seqs] == table["id"].to_pylist()
    assert {"orders", NODE, AT_NS} >= {
        *table["topic"].to_pylist(),
        *table["node"].to_pylist(),
        *table["timestamp_ns"].to_pylist(),
    }
    assert {AT_NS // 1000} >= set(table["timestamp"].cast(pa.int64()).to_pylist())


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (rendered([b"one"])[:-1], "36 bytes are left over"),
        (frames.HEARTBEAT * 3, "is no message"),
        (b"\0\0\0\x1e\0\0\0\x01" + bytes(26), "a frame is no message"),
        (rendered([b"one"]).replace(b"f", b"g"), "is no id"),
    ],
)
def test_what_is_no_run_of_messages_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(CorruptStreamError, match=complaint):
        table_of(raw, 1000)
