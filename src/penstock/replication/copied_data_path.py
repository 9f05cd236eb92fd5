"""The copy of a data path that a follower keeps: the same files, byte by byte.

The copy is changed only by messages of the leader. It accepts only bytes that continue its files,
and only batches and records whose checksums match; if one is incomplete, the copy waits for the
rest before it writes it. So the files are valid at every moment, and a takeover opens them as nsqd
does after a crash.

Opening a copy finds the end of the valid part of each segment, and truncates the rest: the leader
sends it again. Damaged bytes are moved to a `.bad` file first, as recovery does.

If the copy has messages that the leader lacks, the leader tells the copy to cut them; they were
never acknowledged. The copy moves them into a `.cut` file beside the segment.
"""

import contextlib
import errno
from collections.abc import Callable, Collection
from typing import Any

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from penstock.common import names
from penstock.common.errors import CorruptBatchError, ReplicationError
from penstock.replication.stream import (
    Batches,
    CutSegment,
    Damaged,
    FormatSettings,
    HaveTopic,
    Journal,
    JournalState,
    KeepAlive,
    LeaderMessage,
    MetadataFile,
    OpenTopic,
    RemoveSegment,
    RemoveTopic,
    SegmentState,
)
from penstock.storage.batch import (
    HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    BadBytes,
    BatchHeader,
    StoredBatch,
    complete_batches,
    decode_header,
    maybe_segment_header,
    scan_batches,
)
from penstock.storage.check import stored_log_id
from penstock.storage.cursor_journal import BadJournalRecord, JournalRecord, scan_journal
from penstock.storage.cursors import current_generation, read_journals
from penstock.storage.data_dir import (
    FormatFile,
    lock_data_path,
    verify_data_path,
    write_format_file,
)
from penstock.storage.files import (
    FilePool,
    Files,
    Handle,
    ImmediateRemover,
    Lock,
    append_and_sync,
    replace_file,
    storage_error,
    write_all,
)
from penstock.storage.layout import (
    BAD_SUFFIX,
    CUT_SUFFIX,
    METADATA_NAME,
    NEW_SUFFIX,
    TOPICS_NAME,
    Issue,
    cursors_name,
    maybe_generation,
    maybe_removal_number,
    maybe_segment_seq,
    removed_name,
)
from penstock.storage.segment import Segment

__all__ = ["CopiedDataPath", "CopyFsync"]

_OPEN_FILES_MAX = 256

# After this many bytes the index file of a segment is written again, to limit the scan at a start.
_INDEX_SPACING_BYTES = 16 * 1024 * 1024


class CopyFsync:
    """An fsync of the data that was written to the copy; `run` may be called in any thread."""

    def __init__(
        self,
        files: Files,
        segments: list[Segment],
        rewritten: Collection[Segment],
        journals: list[Handle],
        folders: list[str],
        stale: list[str],
    ) -> None:
        """The unsynced bytes of the segments in `rewritten` are written again first."""
        self.parts = [(segment, segment.end) for segment in segments]
        self._rewritten = frozenset(rewritten)
        self.stale = stale
        """Journal files that are obsolete after the fsync."""
        self._files = files
        self._handles = [segment.handle for segment in segments] + journals
        self._folders = folders
        for handle in self._handles:
            handle.pin()

    def run(self) -> None:
        """Fsync. Raises OSError."""
        for segment, end in self.parts:
            if segment in self._rewritten:
                try:
                    segment.rewrite_unsynced(end)
                except CorruptBatchError as error:
                    raise OSError(errno.EIO, str(error)) from error
        for handle in self._handles:
            handle.open().sync()
        for folder in self._folders:
            # The folder of a topic that was deleted meanwhile needs no fsync.
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_folder(folder)

    def release(self) -> None:
        """Unpin the files."""
        for handle in self._handles:
            handle.unpin()
        self._handles.clear()


class _Rest:
    """Buffer for a batch or record that is incomplete at the end of a message: the next message
    about the same file begins with the rest of it."""

    def __init__(self) -> None:
        self._file = 0
        self._data = b""

    def join(self, file: int, data: bytes) -> bytes:
        """The buffered bytes and `data`. Raises ReplicationError if bytes of another file are
        buffered."""
        if not self._data:
            return data
        if self._file != file:
            raise ReplicationError(f"the end of file {self._file} is missing")
        return self._data + data

    def keep(self, file: int, data: bytes) -> None:
        """Buffer the incomplete end of a message."""
        self._file, self._data = file, data

    def drop(self, file: int) -> None:
        """Discard the buffered bytes of a file that was removed."""
        if self._file == file:
            self._data = b""


class _TopicCopy:
    """The copy of one topic."""

    def __init__(self, folder: str, name: str, log_id: bytes) -> None:
        self.name = name
        self.folder = folder
        self.log_id = log_id
        self.segments: dict[int, Segment] = {}
        self.epochs: dict[int, int] = {}
        """The epoch of each segment."""
        self.journal: Handle | None = None
        self.generation = 0
        self.journal_end = 0
        self.journal_crc = 0
        self.stale_journals: list[str] = []
        self.batches_rest = _Rest()
        self.journal_rest = _Rest()

    def state(self) -> HaveTopic:
        segments = [
            SegmentState(seq, self.epochs[seq], segment.end, segment.next_seq)
            for seq, segment in sorted(self.segments.items())
        ]
        journal = None
        if self.journal is not None:
            journal = JournalState(self.generation, self.journal_end, self.journal_crc)
        return HaveTopic(self.name, self.log_id, segments, journal)


class CopiedDataPath:
    """A locked data path that is a copy. One thread owns it; only an fsync may run in another."""

    def __init__(
        self,
        path: str,
        files: Files,
        lock: Lock,
        format_file: FormatFile,
        report: Callable[[Issue], None],
    ) -> None:
        """Use `CopiedDataPath.open`."""
        self.path = path
        self._lock = lock
        self._files = files
        self._pool = FilePool(files, _OPEN_FILES_MAX, ImmediateRemover(files))
        self._topics_path = f"{path}/{TOPICS_NAME}"
        self._format_file = format_file
        self._report = report
        self._topics: dict[str, _TopicCopy] = {}
        self._by_number: dict[int, _TopicCopy] = {}
        self._unsynced: dict[Segment, None] = {}
        self._loaded: set[Segment] = set()
        """Segments with bytes that an earlier process, or an earlier `CopiedDataPath`, has not
        fsynced. If its fsync has failed, the system treats these bytes as written, so that a later
        fsync proves nothing: they are written again first."""
        self._unsynced_journals: dict[_TopicCopy, None] = {}
        self._unsynced_folders: dict[str, None] = {}
        self._is_syncing = False
        self._received_damage: Damaged | None = None
        self.has_failed = False
        """Whether an fsync has failed: what is on the disk is then unknown, so the copy must be
        opened again."""
        self._removal_number = 0
        self._handlers: dict[type[LeaderMessage], Callable[[Any], None]] = {
            Batches: self._append_batches,
            Journal: self._append_journal,
            OpenTopic: self._open_topic,
            CutSegment: self._cut_segment,
            RemoveSegment: self._remove_segment,
            RemoveTopic: self._remove_topic,
            FormatSettings: self._change_settings,
            MetadataFile: self._write_metadata,
            KeepAlive: lambda _: None,
        }

    @classmethod
    def open(cls, path: str, files: Files, report: Callable[[Issue], None]) -> "CopiedDataPath":
        """Lock a folder and load the copy in it. An empty folder becomes a data path. `report` is
        called for damaged data, for incomplete writes at the end of a file, and for data that the
        leader tells the copy to cut. Raises StorageError."""
        lock = lock_data_path(path, files)
        try:
            format_file = verify_data_path(path, files) or FormatFile("", is_open=False)
            copy = cls(path, files, lock, format_file, report)
            copy._load()
        except OSError as error:
            lock.close()
            raise storage_error("read", path, error) from error
        except BaseException:
            lock.close()
            raise
        return copy

    def start_stream(self) -> list[HaveTopic]:
        """To be called when a connection to a leader begins. Discards incomplete batches and
        records of an earlier connection. Returns the topics of the copy."""
        self._by_number.clear()
        for topic in self._topics.values():
            topic.batches_rest = _Rest()
            topic.journal_rest = _Rest()
        return self.topics()

    def topics(self) -> list[HaveTopic]:
        """The topics of the copy, with the state of their files."""
        return [topic.state() for topic in self._topics.values()]

    @property
    def message_bytes(self) -> int:
        """Size of all segments."""
        return sum(
            segment.end for topic in self._topics.values() for segment in topic.segments.values()
        )

    def apply(self, message: LeaderMessage) -> None:
        """Apply a message of the leader. Raises ReplicationError if it does not fit the copy, and
        StorageError if it could not be written; the connection must then be closed."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ReplicationError(f"unexpected message of the leader: {type(message).__name__}")
        try:
            handler(message)
        except OSError as error:
            raise storage_error("write to", self.path, error) from error
        except CorruptBatchError as error:
            if isinstance(message, Batches):
                topic = self._topic(message.topic)
                self._received_damage = Damaged(topic.name, topic.log_id, message.first_seq)
            raise ReplicationError(f"the leader has sent damaged data: {error}") from error

    def take_received_damage(self) -> Damaged | None:
        """The segment of which the leader has sent damaged bytes, once; None if there is none."""
        found, self._received_damage = self._received_damage, None
        return found

    # Syncing

    @property
    def needs_sync(self) -> bool:
        return bool(self._unsynced or self._unsynced_journals or self._unsynced_folders)

    def begin_sync(self) -> CopyFsync:
        """Start an fsync of everything applied so far; one at a time. Raises StorageError."""
        assert not self._is_syncing
        try:
            job = CopyFsync(
                self._files,
                list(self._unsynced),
                self._unsynced.keys() & self._loaded,
                [each.journal for each in self._unsynced_journals if each.journal is not None],
                list(self._unsynced_folders),
                [path for each in self._unsynced_journals for path in each.stale_journals],
            )
        except OSError as error:
            raise storage_error("open", self.path, error) from error
        self._is_syncing = True
        for topic in self._unsynced_journals:
            topic.stale_journals.clear()
        self._unsynced.clear()
        self._unsynced_journals.clear()
        self._unsynced_folders.clear()
        return job

    def end_sync(self, job: CopyFsync, error: OSError | None) -> None:
        """Apply the result of an fsync. Raises StorageError if the fsync failed: the content of the
        disk is then unknown, so the copy must be opened again."""
        self._is_syncing = False
        job.release()
        if error is not None:
            self.has_failed = True
            raise storage_error("sync", self.path, error) from error
        for segment, end in job.parts:
            self._loaded.discard(segment)
            segment.synced_end = max(segment.synced_end, end)
            if segment.is_removed or not segment.is_synced:
                continue
            if segment.end - segment.indexed_end >= _INDEX_SPACING_BYTES:
                with contextlib.suppress(OSError):
                    segment.write_index()
        # While the fsync ran, a new leader may have sent a journal with the number of a stale one.
        current = {each.journal.path for each in self._topics.values() if each.journal is not None}
        for path in job.stale:
            if path not in current:
                with contextlib.suppress(OSError):
                    self._files.remove(path)

    def sync_now(self) -> None:
        """Fsync and wait for it. Raises StorageError."""
        job = self.begin_sync()
        error = None
        try:
            job.run()
        except OSError as failure:
            error = failure
        self.end_sync(job, error)

    # Loading and closing

    def _load(self) -> None:
        # The format file is written first: without it, the folder of the topics is a foreign one.
        opened = self._format_file._replace(boot_id=self._files.boot_id(), is_open=True)
        self._write_format_file(opened)
        if TOPICS_NAME not in self._files.list_names(self.path):
            self._files.make_folder(self._topics_path)
            self._files.sync_folder(self.path)
        for folder in self._files.list_names(self._topics_path):
            path = f"{self._topics_path}/{folder}"
            if (number := maybe_removal_number(folder)) is not None:
                self._removal_number = max(self._removal_number, number)
                ImmediateRemover(self._files).remove_folder(path)
            elif (name := names.name_of_file(folder)) is not None:
                self._load_topic(name, path)
        # An earlier process may have created files and folders without fsyncing their names.
        self._unsynced_folders[self._topics_path] = None
        for topic in self._topics.values():
            self._unsynced_folders[topic.folder] = None

    def _load_topic(self, name: str, folder: str) -> None:
        log_id = stored_log_id(self._files, folder)
        if log_id is None:
            # A topic of format 1, or one that was just being created.
            self._move_topic_away(folder)
            return
        topic = _TopicCopy(folder, name, log_id)
        for file_name in self._files.list_names(folder):
            if file_name.endswith(NEW_SUFFIX):
                self._files.remove(f"{folder}/{file_name}")
            elif (first_seq := maybe_segment_seq(file_name)) is not None:
                self._load_segment(topic, first_seq)
        self._load_journal(topic)
        self._topics[name] = topic

    def _load_segment(self, topic: _TopicCopy, first_seq: int) -> None:
        segment = Segment(self._pool, topic.folder, first_seq, topic.log_id)
        file = segment.handle.open()
        size = file.size()
        checkpoint = segment.read_checkpoint() if segment.read_header() else None
        if checkpoint is not None and first_seq < checkpoint.next_seq:
            if checkpoint.end <= size:
                segment.restore(checkpoint)
            else:
                self._report_invalid(segment, size, checkpoint.end, is_damage=True)
        for found in scan_batches(file, segment.end, size, segment.seed):
            if isinstance(found, BadBytes):
                self._drop_invalid_end(segment, size, is_damage=not found.is_leftover)
                break
            if found.header.first_seq != segment.next_seq:
                self._drop_invalid_end(segment, size, is_damage=True)
                break
            segment.add_scanned(found.header)
        if segment.is_empty:
            segment.remove()
            return
        first_at = 0 if segment.is_format_1 else SEGMENT_HEADER_BYTES
        header = decode_header(file.read(first_at, 2 * HEADER_BYTES), 0, first_at, segment.seed)
        topic.segments[first_seq] = segment
        topic.epochs[first_seq] = header.epoch
        if not segment.is_synced:
            self._unsynced[segment] = None
            self._loaded.add(segment)

    def _drop_invalid_end(self, segment: Segment, size: int, *, is_damage: bool) -> None:
        """Truncate the segment after its last valid batch; the leader sends the rest again.
        `is_damage` is False if an interrupted write explains the invalid bytes; otherwise the copy
        may lack acknowledged messages."""
        file = segment.handle.open()
        rest = file.read(segment.end, size - segment.end)
        if rest.strip(b"\0"):
            append_and_sync(self._files, segment.handle.path + BAD_SUFFIX, [rest])
        if is_damage or rest.strip(b"\0"):
            self._report_invalid(segment, segment.end, size, is_damage=is_damage)
        file.truncate(segment.end)

    def _report_invalid(
        self, segment: Segment, first_byte: int, end_byte: int, *, is_damage: bool
    ) -> None:
        problem = "the end is not valid; it is fetched again from the leader"
        where = {"first_byte": first_byte, "end_byte": end_byte}
        self._report(Issue(segment.handle.path, problem, is_damage=is_damage, **where))

    def _load_journal(self, topic: _TopicCopy) -> None:
        journals = read_journals(self._files, topic.folder)
        if not journals:
            return
        chosen = current_generation(journals)
        end = 0
        for record in journals[chosen]:
            if isinstance(record, BadJournalRecord):
                break
            end = record.end
        if not end:
            return
        topic.generation = chosen
        topic.journal = self._pool.handle(f"{topic.folder}/{cursors_name(chosen)}")
        file = topic.journal.open()
        content = file.read(0, end)
        file.truncate(end)
        write_all(file, [content], 0)  # For the same reason as the segments in `_loaded`.
        topic.journal_end = end
        topic.journal_crc = crc32c(content)
        topic.stale_journals = [
            f"{topic.folder}/{cursors_name(generation)}"
            for generation in journals
            if generation != chosen
        ]
        self._unsynced_journals[topic] = None

    def close(self) -> None:
        """Fsync everything, and unlock the folder. Raises StorageError; the folder is unlocked
        nevertheless, and the next start treats the copy as after a crash."""
        try:
            if self.needs_sync:
                self.sync_now()
            self._write_indexes()
            self._write_format_file(self._format_file._replace(is_open=False))
        except OSError as error:
            raise storage_error("write to", self.path, error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Unlock the folder without fsyncing anything."""
        for topic in self._topics.values():
            for segment in topic.segments.values():
                segment.handle.close()
            if topic.journal is not None:
                topic.journal.close()
        self._lock.close()

    def _write_indexes(self) -> None:
        for topic in self._topics.values():
            for segment in topic.segments.values():
                if segment.indexed_end < segment.end:
                    with contextlib.suppress(OSError):
                        segment.write_index()

    def _write_format_file(self, format_file: FormatFile) -> None:
        write_format_file(self._files, self.path, format_file)
        self._format_file = format_file

    # Messages of the leader

    def _open_topic(self, message: OpenTopic) -> None:
        topic = self._topics.get(message.name)
        if topic is None:
            folder = f"{self._topics_path}/{names.file_name(message.name)}"
            self._files.make_folder(folder)
            topic = _TopicCopy(folder, message.name, message.log_id)
            self._topics[message.name] = topic
            self._unsynced_folders[self._topics_path] = None
        elif topic.log_id != message.log_id:
            raise ReplicationError(f"topic {message.name} has another log")
        self._by_number[message.topic] = topic

    def _append_batches(self, message: Batches) -> None:
        topic = self._topic(message.topic)
        data = topic.batches_rest.join(message.first_seq, message.data)
        position = message.position - (len(data) - len(message.data))
        segment = topic.segments.get(message.first_seq)
        is_new = segment is None
        if segment is None:
            segment = Segment(self._pool, topic.folder, message.first_seq, topic.log_id)
        if position != segment.end:
            raise ReplicationError(
                f"{segment.handle.path}: the leader has sent byte {position}, not {segment.end}"
            )
        start = self._start_of_batches(segment, data) if position == 0 else 0
        headers = _valid_batches(data[start:], position + start, segment)
        end = headers[-1].end - position if headers else 0
        if end:
            if is_new:
                segment.handle.create()
                self._unsynced_folders[topic.folder] = None
                topic.segments[message.first_seq] = segment
                topic.epochs[message.first_seq] = headers[0].epoch
            segment.append_copy(data[:end], headers)
            self._unsynced[segment] = None
        topic.batches_rest.keep(message.first_seq, data[end:])

    def _start_of_batches(self, segment: Segment, data: bytes) -> int:
        """Position of the first batch of a new segment: after the header, or 0 in format 1."""
        header = maybe_segment_header(data)
        if header is None:
            if len(data) >= SEGMENT_HEADER_BYTES:
                segment.set_format_1()
            return 0
        if header != (segment.log_id, segment.first_seq):
            raise ReplicationError(f"{segment.handle.path}: the leader has sent another segment")
        return SEGMENT_HEADER_BYTES

    def _append_journal(self, message: Journal) -> None:
        topic = self._topic(message.topic)
        if message.position == 0:
            # A new file. The leader may have started it before it had sent the old one completely.
            topic.journal_rest = _Rest()
        data = topic.journal_rest.join(message.generation, message.data)
        position = message.position - (len(data) - len(message.data))
        expected = topic.generation, topic.journal_end
        if position and (topic.journal is None or expected != (message.generation, position)):
            raise ReplicationError(
                f"{topic.name}: the leader has sent byte {position} of journal "
                f"{message.generation}, not {topic.journal_end} of {topic.generation}"
            )
        end = 0
        for record in scan_journal(data):
            if not isinstance(record, JournalRecord):
                break
            end = record.end
        topic.journal_rest.keep(message.generation, data[end:])
        if not end:
            return
        if position == 0:
            self._start_journal(topic, message.generation, data[:end])
            return
        assert topic.journal is not None
        write_all(topic.journal.open(), [data[:end]], position)
        self._grow_journal(topic, data[:end])

    def _start_journal(self, topic: _TopicCopy, generation: int, data: bytes) -> None:
        """Replace the journal. A crash leaves the old one or the new one, never a part."""
        path = f"{topic.folder}/{cursors_name(generation)}"
        if topic.journal is not None:
            topic.journal.close()
        replace_file(self._files, path, path + NEW_SUFFIX, data)
        topic.journal = self._pool.handle(path)
        topic.generation, topic.journal_end, topic.journal_crc = generation, 0, 0
        # At once: the old file may have a higher number, and would then be used at the next start.
        topic.stale_journals = []
        for name in self._files.list_names(topic.folder):
            if maybe_generation(name) not in (None, generation):
                self._files.remove(f"{topic.folder}/{name}")
        self._unsynced_folders[topic.folder] = None
        self._grow_journal(topic, data)

    def _grow_journal(self, topic: _TopicCopy, data: bytes) -> None:
        topic.journal_end += len(data)
        topic.journal_crc = crc32c_extend(topic.journal_crc, data)
        self._unsynced_journals[topic] = None

    def _cut_segment(self, message: CutSegment) -> None:
        topic = self._topic(message.topic)
        segment = topic.segments.get(message.first_seq)
        if segment is None or message.end >= segment.end:
            return
        file = segment.handle.open()
        cut = file.read(message.end, segment.end - message.end)
        append_and_sync(self._files, segment.handle.path + CUT_SUFFIX, [cut])
        self._files.sync_folder(topic.folder)
        problem = f"the leader does not have this; kept in a {CUT_SUFFIX} file"
        where = {"first_byte": message.end, "end_byte": segment.end}
        self._report(Issue(segment.handle.path, problem, is_damage=False, **where))
        if message.end == 0:
            self._remove_segment(RemoveSegment(message.topic, message.first_seq))
            return
        del topic.segments[message.first_seq]
        segment.remove_index()
        file.truncate(message.end)
        file.sync()
        segment.handle.close()
        self._unsynced.pop(segment, None)
        self._load_segment(topic, message.first_seq)

    def _remove_segment(self, message: RemoveSegment) -> None:
        topic = self._topic(message.topic)
        topic.batches_rest.drop(message.first_seq)
        segment = topic.segments.pop(message.first_seq, None)
        if segment is not None:
            topic.epochs.pop(message.first_seq)
            self._unsynced.pop(segment, None)
            segment.remove()
            self._unsynced_folders[topic.folder] = None

    def _remove_topic(self, message: RemoveTopic) -> None:
        topic = self._topics.get(message.name)
        if topic is None or topic.log_id != message.log_id:
            return
        for segment in topic.segments.values():
            self._unsynced.pop(segment, None)
            segment.handle.close()
        if topic.journal is not None:
            topic.journal.close()
        self._unsynced_journals.pop(topic, None)
        self._unsynced_folders.pop(topic.folder, None)
        del self._topics[message.name]
        self._by_number = {
            number: each for number, each in self._by_number.items() if each is not topic
        }
        self._move_topic_away(topic.folder)

    def _move_topic_away(self, folder: str) -> None:
        self._removal_number += 1
        removed = removed_name(folder, self._removal_number)
        self._files.rename(folder, removed)
        self._files.sync_folder(self._topics_path)
        ImmediateRemover(self._files).remove_folder(removed)

    def _change_settings(self, message: FormatSettings) -> None:
        self._write_format_file(
            self._format_file._replace(
                node_id=message.node_id, reserved_below=message.reserved_below
            )
        )

    def _write_metadata(self, message: MetadataFile) -> None:
        path = f"{self.path}/{METADATA_NAME}"
        replace_file(self._files, path, path + NEW_SUFFIX, message.content)

    def _topic(self, number: int) -> _TopicCopy:
        topic = self._by_number.get(number)
        if topic is None:
            raise ReplicationError(f"the leader has not opened topic {number}")
        return topic


def _valid_batches(data: bytes, position: int, segment: Segment) -> list[BatchHeader]:
    """The headers of the complete batches. Raises CorruptBatchError and ReplicationError."""
    headers: list[BatchHeader] = []
    expected = segment.next_seq
    found: StoredBatch
    for found in complete_batches(data, position, segment.seed):
        if found.header.first_seq != expected:
            raise ReplicationError(
                f"{segment.handle.path}: message {found.header.first_seq} follows {expected - 1}"
            )
        expected = found.header.next_seq
        headers.append(found.header)
    return headers
