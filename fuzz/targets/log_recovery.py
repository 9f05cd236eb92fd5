"""Recovery of a log after a crash or disk damage.

The bytes of an input are steps: batches that are written, and damage to them. For all inputs, no
intact batch is lost, no batch is delivered that was not written, damage is reported, and after
recovery the log is valid, stable and writable.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.storage import DataPath, Issue, LogSettings, TopicStore, check_data_path
from penstock.storage.batch import encode_batch
from penstock.storage.layout import segment_name
from penstock.testing.files import MemoryFiles

__all__ = ["SEEDS", "check"]

WALL_NS = 1_700_000_000_000_000_000
FIRST_SEQ = WALL_NS // 1000
FOLDER = "data/topics/t"
STEPS_MAX = 40

# Steps by number; the bytes after a number are its arguments.
WRITE, SKIP_NUMBERS, GARBAGE, ZEROS, COPY, FLIP, CUT, NEW_SEGMENT = range(8)

SEEDS = [
    bytes([WRITE, 1, WRITE, 2, WRITE, 3]),
    bytes([WRITE, 1, CUT, 5]),
    bytes([WRITE, 2, WRITE, 1, FLIP, 60, 1, WRITE, 3]),
    bytes([WRITE, 1, GARBAGE, 3, 7, 8, 9, WRITE, 2, NEW_SEGMENT, WRITE, 3, CUT, 70]),
    bytes([WRITE, 1, WRITE, 1, FLIP, 20, 255, ZEROS, 90]),
    bytes([WRITE, 3, COPY, 0, WRITE, 1, NEW_SEGMENT, WRITE, 1, SKIP_NUMBERS, 9, WRITE, 2]),
    bytes([WRITE, 1, GARBAGE, 4, 0x9E, 0x50, 0x53, 0x42, WRITE, 1]),
]


@dataclass
class Written:
    """A batch, where it was written, and what it was."""

    position: int
    raw: bytes
    bodies: list[bytes]


@dataclass
class Story:
    """The segments of a log, as they have become."""

    next_seq: int = FIRST_SEQ
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
    story.segments[FIRST_SEQ], story.written[FIRST_SEQ] = bytearray(), []
    left = iter(data)
    for _, step in zip(range(STEPS_MAX), left, strict=False):
        take_step(story, step % 8, left)
    return story


def take_step(story: Story, step: int, arguments: Iterator[int]) -> None:
    first_seq, segment = list(story.segments.items())[-1]
    argument = next(arguments, 0)
    if step == NEW_SEGMENT:
        if story.next_seq > first_seq:
            story.segments[story.next_seq], story.written[story.next_seq] = bytearray(), []
            story.is_cut = False
    elif step == CUT:
        # Nothing is ever written after the torn end of a file.
        del segment[max(0, len(segment) - argument) :]
        story.is_cut = True
    elif step == FLIP and segment:
        segment[argument * 3 % len(segment)] ^= next(arguments, 1)
    elif not story.is_cut:
        extend(story, segment, story.written[first_seq], step, argument, arguments)


def extend(
    story: Story,
    segment: bytearray,
    written: list[Written],
    step: int,
    argument: int,
    arguments: Iterator[int],
) -> None:
    if step in (WRITE, SKIP_NUMBERS):
        # Numbers are skipped only where damage has taken their messages.
        count = 1 + argument % 4
        story.next_seq += argument if step == SKIP_NUMBERS and is_damaged(segment, written) else 0
        bodies = [b"%d" % (story.next_seq + at) for at in range(count)]
        frames = b"".join(len(body).to_bytes(4) + body for body in bodies)
        position = len(segment)
        raw = b"".join(encode_batch(frames, count, story.next_seq, position, WALL_NS, 0))
        written.append(Written(position, raw, bodies))
        segment += raw
        story.next_seq += count
    elif step == GARBAGE:
        segment += bytes(byte for _, byte in zip(range(argument % 70), arguments, strict=False))
    elif step == ZEROS:
        segment += bytes(argument)
    elif step == COPY and written:
        segment += written[argument % len(written)].raw


def is_damaged(segment: bytearray, written: list[Written]) -> bool:
    return bytes(segment) != b"".join(batch.raw for batch in written)


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
        len(segment) == sum(len(batch.raw) for batch in story.written[first_seq])
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
