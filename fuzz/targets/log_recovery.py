"""Recovery of a log after a crash or disk damage.

The bytes of an input are steps: batches that are written, and damage to them. For all inputs, no
intact batch is lost, no batch is delivered that was not written, damage is reported, and after
recovery the log is valid, stable and writable.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.storage import DataPath, Issue, LogSettings, TopicStore, check_data_path
from penstock.storage.attributes import MessageAttributes, encode_attributes
from penstock.storage.batch import checksum_seed, encode_batch, encode_segment_header
from penstock.storage.layout import segment_name
from penstock.testing.files import MemoryFiles
from penstock.testing.format_1 import encode_batch_1

__all__ = ["SEEDS", "check"]

WALL_NS = 1_700_000_000_000_000_000
FIRST_SEQ = WALL_NS // 1000
FOLDER = "data/topics/t"
STEPS_MAX = 40

# Steps by number; the bytes after a number are its arguments.
WRITE, SKIP_NUMBERS, GARBAGE, ZEROS, COPY, FLIP, CUT, NEW_SEGMENT = range(8)

# Bits of an argument: a batch with attributes; a copy of a batch of another log.
WITH_ATTRIBUTES, FOREIGN = 128, 128

SEEDS = [
    bytes([WRITE, 1, WRITE, 2, WRITE, 3]),
    bytes([WRITE, 1, CUT, 5]),
    bytes([WRITE, 2, WRITE, 1, FLIP, 60, 1, WRITE, 3]),
    bytes([WRITE, 1, GARBAGE, 3, 7, 8, 9, WRITE, 2, NEW_SEGMENT, WRITE, 3, CUT, 70]),
    bytes([WRITE, 1, WRITE, 1, FLIP, 20, 255, ZEROS, 90]),
    bytes([WRITE, 3, COPY, 0, WRITE, 1, NEW_SEGMENT, WRITE, 1, SKIP_NUMBERS, 9, WRITE, 2]),
    bytes([WRITE, 1, GARBAGE, 4, 0x9E, 0x50, 0x53, 0x42, WRITE, 1]),
    bytes([WRITE, WITH_ATTRIBUTES, WRITE, 1, FLIP, 50, 1, COPY, FOREIGN, WRITE, WITH_ATTRIBUTES]),
    bytes([WRITE, 1, NEW_SEGMENT, 1, WRITE, 2, WRITE, 1, FLIP, 3, 2, NEW_SEGMENT, 0, WRITE, 1]),
]


@dataclass
class Written:
    """A batch, where it was written, and what it was."""

    position: int
    raw: bytes
    bodies: list[bytes]
    foreign: bytes
    """The same batch in another log."""


@dataclass
class Story:
    """The segments of a log, as they have become."""

    next_seq: int = FIRST_SEQ
    headers: dict[int, bytes] = field(default_factory=dict)
    segments: dict[int, bytearray] = field(default_factory=dict)
    written: dict[int, list[Written]] = field(default_factory=dict)
    is_cut: bool = False

    def intact(self) -> Iterator[bytes]:
        """The bodies of all batches that are as they were written."""
        for first_seq, batches in self.written.items():
            segment = self.segments[first_seq]
            for batch in batches:
                if segment[batch.position : batch.position + len(batch.raw)] == batch.raw:
                    yield from batch.bodies

    @property
    def bodies(self) -> set[bytes]:
        """All that was ever written."""
        batches = (batch for batches in self.written.values() for batch in batches)
        return {body for batch in batches for body in batch.bodies}


def told(data: bytes) -> Story:
    """The steps of an input; invalid ones are skipped."""
    story = Story()
    start_segment(story, is_format_1=False)
    left = iter(data)
    for _, step in zip(range(STEPS_MAX), left, strict=False):
        take_step(story, step % 8, left)
    return story


def start_segment(story: Story, *, is_format_1: bool) -> None:
    header = b"" if is_format_1 else encode_segment_header(LOG_ID, story.next_seq)
    story.headers[story.next_seq] = header
    story.segments[story.next_seq], story.written[story.next_seq] = bytearray(header), []


def take_step(story: Story, step: int, arguments: Iterator[int]) -> None:
    first_seq, segment = list(story.segments.items())[-1]
    argument = next(arguments, 0)
    if step == NEW_SEGMENT:
        if story.next_seq > first_seq:
            start_segment(story, is_format_1=bool(argument % 2))
            story.is_cut = False
    elif step == CUT:
        # Nothing is ever written after the torn end of a file.
        del segment[max(0, len(segment) - argument) :]
        story.is_cut = True
    elif step == FLIP and segment:
        segment[argument * 3 % len(segment)] ^= next(arguments, 1)
    elif not story.is_cut:
        extend(story, first_seq, step, argument, arguments)


def extend(
    story: Story, first_seq: int, step: int, argument: int, arguments: Iterator[int]
) -> None:
    segment, written = story.segments[first_seq], story.written[first_seq]
    if step in (WRITE, SKIP_NUMBERS):
        # Numbers are skipped only where damage has taken their messages.
        story.next_seq += argument if step == SKIP_NUMBERS and is_damaged(story, first_seq) else 0
        batch = batch_of(story, argument, len(segment), is_format_1=not story.headers[first_seq])
        written.append(batch)
        segment += batch.raw
        story.next_seq += len(batch.bodies)
    elif step == GARBAGE:
        segment += bytes(byte for _, byte in zip(range(argument % 70), arguments, strict=False))
    elif step == ZEROS:
        segment += bytes(argument)
    elif step == COPY and written:
        batch = written[argument % len(written)]
        segment += batch.foreign if argument & FOREIGN else batch.raw


def batch_of(story: Story, argument: int, position: int, *, is_format_1: bool) -> Written:
    count = 1 + argument % 4
    bodies = [b"%d" % (story.next_seq + at) for at in range(count)]
    frames = b"".join(len(body).to_bytes(4) + body for body in bodies)
    attributes = b""
    if argument & WITH_ATTRIBUTES:
        attributes = encode_attributes([MessageAttributes(key=body) for body in bodies])

    def encoded(log_id: bytes) -> bytes:
        seed, seq = checksum_seed(log_id), story.next_seq
        return b"".join(encode_batch(frames, count, seq, 0, WALL_NS, 0, seed, attributes))

    raw = encoded(LOG_ID)
    if is_format_1:
        raw = encode_batch_1(frames, count, story.next_seq, position, WALL_NS, 0)
    return Written(position, raw, bodies, encoded(bytes(16)))


def is_damaged(story: Story, first_seq: int) -> bool:
    whole = [story.headers[first_seq], *(batch.raw for batch in story.written[first_seq])]
    return bytes(story.segments[first_seq]) != b"".join(whole)


def check(data: bytes) -> None:
    story = told(data)
    files = laid_out(story)
    bodies, damage = delivered(files)
    intact = list(story.intact())
    assert [body for body in bodies if body in set(intact)] == intact, (bodies, intact)
    assert set(bodies) <= story.bodies
    assert bodies == sorted(set(bodies), key=bodies.index)
    lost_inside = set(bodies) < story.bodies and not story.is_cut and only_flipped(story)
    assert damage or not lost_inside, "messages are gone, and nobody says so"

    assert delivered(files) == (bodies, []), "recovery has not ended the matter"
    files.crash()
    assert not [found for found in check_data_path("data", files) if found.is_damage]
    bodies.append(append(files))
    assert delivered(files) == (bodies, [])


def only_flipped(story: Story) -> bool:
    """Whether every segment is as long as what was written to it: only a flip has changed it."""
    return all(
        len(segment)
        == len(story.headers[first_seq]) + sum(len(each.raw) for each in story.written[first_seq])
        for first_seq, segment in story.segments.items()
    )


def laid_out(story: Story) -> MemoryFiles:
    """The data path of a process that crashed."""
    files = MemoryFiles()
    files.make_folder("data")
    open_topic(files)
    files.crash()
    for first_seq, segment in story.segments.items():
        files.open(f"{FOLDER}/{segment_name(first_seq)}", "create").write(bytes(segment), 0)
    return files


def log_id_of_the_topic() -> bytes:
    """Ids in memory are the same in every run."""
    files = MemoryFiles()
    files.make_folder("data")
    return bytes.fromhex(open_topic(files)[1].log.log_id)


def open_topic(files: MemoryFiles) -> tuple[DataPath, TopicStore, list[Issue]]:
    data_path = DataPath.open("data", LogSettings(), files)
    store, findings = data_path.open_topic("t", wall_ns=WALL_NS)
    return data_path, store, findings


def delivered(files: MemoryFiles) -> tuple[list[bytes], list[Issue]]:
    """Messages and reported damage of the next process, which then crashes too."""
    files.crash()
    _, store, findings = open_topic(files)
    bodies: list[bytes] = []
    seq = 0
    while runs := store.log.read(seq):
        bodies += [frame[4:] for run in runs for frame in run.frames]
        seq = runs[-1].next_seq
    damage = [found for found in [*findings, *store.log.damage] if found.is_damage]
    return bodies, damage


def append(files: MemoryFiles) -> bytes:
    """Write one more message, and close the log."""
    files.crash()
    data_path, store, _ = open_topic(files)
    body = b"%d" % store.log.next_seq
    store.log.append([len(body).to_bytes(4) + body], WALL_NS)
    data_path.close()
    return body


LOG_ID = log_id_of_the_topic()
