"""A topic on disk: its log, the cursors of its channels, and what the two must agree on.

Numbers must not be given out twice, and a channel must not wait for a message that is not there. So
when a topic is loaded, its next number is above all that either of them speaks of, and what the log
does not have is finished for every channel.
"""

from collections.abc import Sequence
from contextlib import suppress

from penstock.common.errors import StorageError
from penstock.storage.clean_shutdown import LastEnd
from penstock.storage.cursors import Cursors
from penstock.storage.file_pool import FilePool
from penstock.storage.fsync import FsyncTarget, fsync_in_parallel
from penstock.storage.issue import Finding
from penstock.storage.recovery import Loaded, load_segments
from penstock.storage.settings import LogSettings
from penstock.storage.topic_log import TopicLog

__all__ = [
    "SKIPPED_NUMBERS",
    "TopicStore",
    "close_stores",
    "create_store",
    "load_store",
    "seq_of_time",
]

# More messages than nsqd can store between two fsyncs: twelve minutes at 1.5 million a second.
# The 54 bits of a sequence number suffice for 10 million such skips.
SKIPPED_NUMBERS = 1 << 30


class TopicStore:
    """A topic's log and the cursors of its channels."""

    def __init__(self, log: TopicLog, cursors: Cursors) -> None:
        self.log = log
        self.cursors = cursors
        self.is_closed = False
        self.is_safe = True
        """Whether, once closed, all of it was brought to disk."""

    def close(self) -> None:
        """Closes both, so that the next start reads no message. Raises StorageError if one could
        not be brought to disk; both are closed then too."""
        self.is_closed = True
        self.is_safe = False
        try:
            self.cursors.close()
        finally:
            self.log.close()
        self.is_safe = True

    def discard(self) -> None:
        """Closes both and leaves everything as it is: for a topic that is to be removed."""
        self.is_closed = True
        self.cursors.discard()
        self.log.discard()


def close_stores(stores: Sequence[TopicStore]) -> list[StorageError]:
    """Closes many topics, with their fsyncs in parallel; returns the failures. An unexpected
    exception is raised after all others are closed.

    No sync may be under way.
    """
    if len(stores) > 1:
        _try_to_sync(stores)
    # What has failed until here is tried once more by `close`, which tells if it fails again.
    failures: list[StorageError] = []
    bugs: list[Exception] = []
    for store in stores:
        try:
            store.close()
        except StorageError as failure:
            failures.append(failure)
        except Exception as bug:  # noqa: BLE001 (raised below)
            bugs.append(bug)
    if bugs:
        raise bugs[0]
    return failures


def _try_to_sync(stores: Sequence[TopicStore]) -> None:
    for store in stores:
        with suppress(Exception):
            store.cursors.flush()
    parts: list[FsyncTarget] = [part for store in stores for part in (store.log, store.cursors)]
    fsync_in_parallel([part for part in parts if part.needs_sync])


def create_store(pool: FilePool, folder: str, settings: LogSettings, next_seq: int) -> TopicStore:
    """Begins a topic in an empty folder, whose first message gets the number `next_seq`."""
    cursors = Cursors(pool, folder)
    cursors.begin(next_seq)
    return TopicStore(TopicLog(pool, folder, settings, [], next_seq), cursors)


def load_store(
    pool: FilePool, folder: str, settings: LogSettings, new_seq: int, last_end: LastEnd
) -> tuple[TopicStore, list[Finding]]:
    """Loads a topic; also returns what had to be put right. Raises OSError or StorageError.
    `new_seq` is the first sequence number of a new topic.

    After a power loss, messages that were delivered may be gone without a trace. Their numbers are
    not used again, because a reader may remember its position: the next message gets a number far
    above every known one, even if the clock was set back. The new start is fsynced before it is
    used, so that a second power loss skips further.
    """
    lost_power = last_end is LastEnd.POWER_LOSS
    loaded = load_segments(pool, folder)
    cursors = Cursors(pool, folder)
    journal_findings = cursors.load(is_synced=last_end is LastEnd.CLEAN)
    findings = loaded.findings + journal_findings
    if not cursors.has_journal:
        findings += _begin_again(folder, cursors, loaded, new_seq, lost_power=lost_power)
    next_seq = max(loaded.next_seq, cursors.known_end)
    if lost_power or loaded.is_tail_lost:
        findings += _skip_numbers(folder, cursors, next_seq, new_seq)
        next_seq = cursors.known_end
    stored_end = loaded.segments[-1].next_seq if loaded.segments else 0
    if next_seq > max(stored_end, cursors.known_end):
        # Recovery has removed an empty segment, whose name was the only trace of these numbers.
        cursors.reserve(next_seq)
    log = TopicLog(pool, folder, settings, loaded.segments, next_seq)
    if not cursors.progress and any(finding.is_damage for finding in journal_findings):
        # The channels will be made again: let them have everything rather than miss something.
        cursors.hold(log.first_seq)
    for channel, progress in cursors.progress.items():
        for first, end in log.gaps(progress.floor, next_seq):
            cursors.finish(channel, first, end)
    return TopicStore(log, cursors), findings


def _begin_again(
    folder: str, cursors: Cursors, loaded: Loaded, new_seq: int, *, lost_power: bool
) -> list[Finding]:
    """Without a journal the topic was being created, or something took the journal away."""
    if not loaded.segments:
        # After a power loss, `_skip_numbers` is next.
        cursors.begin(max(loaded.next_seq, new_seq))
        return []
    cursors.begin(loaded.segments[0].first_seq)
    problem = "the journal of the channels is missing; all messages are kept for new channels"
    return [Finding(folder, problem, is_damage=not lost_power)]


def _skip_numbers(folder: str, cursors: Cursors, first: int, new_seq: int) -> list[Finding]:
    end = max(first + SKIPPED_NUMBERS, new_seq)
    cursors.reserve(end)
    cursors.sync()
    problem = "message numbers are skipped, since their messages may have been lost"
    return [Finding(folder, problem, is_damage=False, first_seq=first, end_seq=end)]


def seq_of_time(wall_ns: int) -> int:
    """The number that a topic begins with which is made then: microseconds, so that one that is
    made again uses no number that it had before."""
    return wall_ns // 1000
