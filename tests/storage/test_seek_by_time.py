"""Seeking by time finds the first message stored at or after the time."""

from hypothesis import given
from hypothesis import strategies as st
from tests.storage.frames import frames, open_topic

from penstock.storage import LogSettings, TopicLog
from penstock.testing import MemoryFiles


def log_of(batches: list[tuple[int, int]], *, segment_bytes: int, reopened: bool) -> TopicLog:
    """A log of batches, each given as timestamp and number of messages."""
    files = MemoryFiles()
    files.make_folder("data")
    settings = LogSettings(max_bytes_per_file=segment_bytes)
    data_path, store = open_topic(files, settings)
    for timestamp_ns, count in batches:
        store.log.append(frames(*["x" * 20_000] * count), timestamp_ns)
    if reopened:
        data_path.close()
        _, store = open_topic(files, settings)
    return store.log


def expected_seq(log: TopicLog, batches: list[tuple[int, int]], time_ns: int) -> int:
    seq = log.first_seq
    for timestamp_ns, count in batches:
        if timestamp_ns >= time_ns:
            return seq
        seq += count
    return seq


# Few different times, so that many are equal; in any order, because clocks are set back, too. Large
# messages, so that there are several index entries and several segments.
TIMESTAMPS = st.integers(1, 12)


@given(
    batches=st.lists(st.tuples(TIMESTAMPS, st.integers(1, 4)), min_size=1, max_size=30),
    clock_goes_forward=st.booleans(),
    segment_bytes=st.sampled_from([100_000, 400_000, 100_000_000]),
    reopened=st.booleans(),
)
def test_seq_at_time_is_the_first_message_not_older(
    batches: list[tuple[int, int]], clock_goes_forward: bool, segment_bytes: int, reopened: bool
) -> None:
    if clock_goes_forward:
        batches = sorted(batches)
    log = log_of(batches, segment_bytes=segment_bytes, reopened=reopened)

    for time_ns in range(14):
        assert expected_seq(log, batches, time_ns) == log.seq_at_time(time_ns)
