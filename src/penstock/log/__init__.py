"""The append-only log under every topic, and the cursors of its channels."""

from penstock.log.batch import FoundBatch, split_frames
from penstock.log.check import check_data_path
from penstock.log.cursors import Cursors
from penstock.log.data_path import DataPath
from penstock.log.files import Files, RealFiles
from penstock.log.finding import Finding
from penstock.log.group_commit import GroupCommit
from penstock.log.index import DeferredBatch
from penstock.log.progress import Note, Progress
from penstock.log.ranges import RangeSet, runs_of
from penstock.log.reader import LogReader, Read, Trimmed
from penstock.log.removal import BackgroundRemover
from penstock.log.segment import Run, SegmentInfo
from penstock.log.settings import LogSettings, Retention
from penstock.log.topic_log import READ_BYTES, TopicLog
from penstock.log.topic_store import TopicStore, close_stores

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
