"""Helpers: frames, and topics to store them in."""

from penstock.storage import DataPath, LogSettings, TopicLog, TopicStore
from penstock.storage.files import Files
from penstock.storage.segment import Run

__all__ = ["WALL_NS", "bodies_in", "frame", "frames", "open_topic", "read_all"]

WALL_NS = 1_700_000_000_000_000_000


def frame(body: bytes) -> bytes:
    """The log needs only the size at the start of a frame."""
    return len(body).to_bytes(4) + body


def frames(*bodies: str) -> list[bytes]:
    return [frame(body.encode()) for body in bodies]


def bodies_in(runs: list[Run]) -> list[str]:
    return [stored[4:].decode() for run in runs for stored in run.frames]


def read_all(log: TopicLog, seq: int = 0) -> list[str]:
    """All bodies from `seq` on, in order."""
    bodies = []
    while runs := log.read(seq):
        bodies += bodies_in(runs)
        seq = runs[-1].next_seq
    return bodies


def open_topic(
    files: Files, settings: LogSettings | None = None, *, wall_ns: int = WALL_NS
) -> tuple[DataPath, TopicStore]:
    """Open the topic `t` of the data path `data`."""
    data_path = DataPath.open("data", settings or LogSettings(), files)
    store, _ = data_path.open_topic("t", wall_ns=wall_ns)
    return data_path, store
