"""The result of a check."""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Diagnosis", "Grade", "Subject", "fail", "ok", "warn"]


class Grade(StrEnum):
    """Severity of a result. Only FAIL prevents Penstock from working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Diagnosis(NamedTuple):
    """The finding, and a hint for the user."""

    grade: Grade
    found: str
    hint: str = ""


class Subject(NamedTuple):
    """The data path and the host to check."""

    data_path: str
    host: str


def ok(found: str, hint: str = "") -> Diagnosis:
    return Diagnosis(Grade.OK, found, hint)


def warn(found: str, hint: str) -> Diagnosis:
    return Diagnosis(Grade.WARN, found, hint)


def fail(found: str, hint: str) -> Diagnosis:
    return Diagnosis(Grade.FAIL, found, hint)
