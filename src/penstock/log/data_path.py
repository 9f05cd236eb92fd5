"""The folder that holds all logs. (Signatures first; the inside is being written.)"""

from penstock.log.cursors import Cursors
from penstock.log.files import Files, RealFiles
from penstock.log.finding import Finding
from penstock.log.settings import LogSettings
from penstock.log.topic_log import TopicLog

__all__ = ["DataPath", "TopicStore"]

_REAL_FILES = RealFiles()


class TopicStore:
    """A topic's log and the cursors of its channels."""

    log: TopicLog
    cursors: Cursors

    def close(self) -> None:
        raise NotImplementedError


class DataPath:
    """The folder, locked."""

    @classmethod
    def open(cls, path: str, settings: LogSettings, files: Files = _REAL_FILES) -> "DataPath":
        raise NotImplementedError

    def topics(self) -> list[str]:
        raise NotImplementedError

    def open_topic(self, name: str, *, wall_ns: int) -> tuple[TopicStore, list[Finding]]:
        raise NotImplementedError

    def remove_topic(self, name: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
