"""Storage of topics: an append-only log per topic, and the cursors of its channels."""

from penstock.storage.batch import StoredBatch, split_frames
from penstock.storage.check import check_data_path
from penstock.storage.cursors import Cursors
from penstock.storage.data_dir import DataPath
from penstock.storage.files import BackgroundRemover, Files, RealFiles
from penstock.storage.fsync import GroupCommit
from penstock.storage.index import DeferredBatch
from penstock.storage.layout import Issue
from penstock.storage.observer import StoreObserver
from penstock.storage.progress import Progress, RangeSet, RetryState, to_ranges
from penstock.storage.reader import LogReader, ReadJob
from penstock.storage.retention import LogSettings, Retention
from penstock.storage.segment import Run, SegmentExtent, SegmentInfo
from penstock.storage.topic_log import READ_BYTES, TopicLog, TrimmedError
from penstock.storage.topic_storage import TopicStore, close_stores

__all__ = [
    "READ_BYTES",
    "BackgroundRemover",
    "Cursors",
    "DataPath",
    "DeferredBatch",
    "Files",
    "GroupCommit",
    "Issue",
    "LogReader",
    "LogSettings",
    "Progress",
    "RangeSet",
    "ReadJob",
    "RealFiles",
    "Retention",
    "RetryState",
    "Run",
    "SegmentExtent",
    "SegmentInfo",
    "StoreObserver",
    "StoredBatch",
    "TopicLog",
    "TopicStore",
    "TrimmedError",
    "check_data_path",
    "close_stores",
    "split_frames",
    "to_ranges",
]
