"""The append-only log under every topic, and the cursors of its channels."""

from penstock.storage.batch import FoundBatch, split_frames
from penstock.storage.check import check_data_path
from penstock.storage.cursors import Cursors
from penstock.storage.data_dir import DataPath
from penstock.storage.files import BackgroundRemover, Files, RealFiles
from penstock.storage.fsync import GroupCommit
from penstock.storage.index import DeferredBatch
from penstock.storage.layout import Finding
from penstock.storage.progress import Note, Progress, RangeSet, runs_of
from penstock.storage.reader import LogReader, Read, Trimmed
from penstock.storage.retention import LogSettings, Retention
from penstock.storage.segment import Run, SegmentInfo
from penstock.storage.topic_log import READ_BYTES, TopicLog
from penstock.storage.topic_storage import TopicStore, close_stores

__all__ = [
    "READ_BYTES",
    "BackgroundRemover",
    "Cursors",
    "DataPath",
    "DeferredBatch",
    "Files",
    "Finding",
    "FoundBatch",
    "GroupCommit",
    "LogReader",
    "LogSettings",
    "Note",
    "Progress",
    "RangeSet",
    "Read",
    "RealFiles",
    "Retention",
    "Run",
    "SegmentInfo",
    "TopicLog",
    "TopicStore",
    "Trimmed",
    "check_data_path",
    "close_stores",
    "runs_of",
    "split_frames",
]
