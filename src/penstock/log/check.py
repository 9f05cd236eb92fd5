"""Verifies a data path, byte by byte, and changes nothing.

What an ordinary crash leaves behind, and the next start puts right, is found too, but is not called
damage. Everything else must be as the log format says: every checksum, every frame's size, numbers
without a gap within a segment and without overlap between two, index files that agree with their
segments, and a journal that can be read.
"""

import contextlib
from dataclasses import replace

from penstock import names
from penstock.errors import CorruptBatch, DataPathError
from penstock.log.batch import Batch, split_frames
from penstock.log.cursors import read_journals
from penstock.log.data_path import REAL_FILES, lock_data_path, verify_data_path
from penstock.log.files import Files
from penstock.log.finding import Finding
from penstock.log.index import Checkpoint, SparseIndex, maybe_checkpoint, maybe_index
from penstock.log.journal import BadRecord, Record
from penstock.log.layout import (
    BAD_SUFFIX,
    FORMAT_NAME,
    NEW_SUFFIX,
    TOPICS_NAME,
    cursors_name,
    index_name,
    is_removed,
    maybe_segment_seq,
    segment_name,
)
from penstock.log.scan import BadBytes, walk

__all__ = ["check_data_path"]


def check_data_path(path: str, files: Files = REAL_FILES) -> list[Finding]:
    """What is not as it should be. Raises DataPathError if that cannot be told, because the folder
    is no data path, is in use, or cannot be read."""
    with contextlib.closing(lock_data_path(path, files, shared=True)):
        if verify_data_path(path, files) is None:
            raise DataPathError(f"{path} is not a data path: it has no {FORMAT_NAME}")
        topics_path = f"{path}/{TOPICS_NAME}"
        folders = files.names(topics_path) if TOPICS_NAME in files.names(path) else []
        findings = []
        for folder in folders:
            findings += _check_topic(files, f"{topics_path}/{folder}")
        return findings
