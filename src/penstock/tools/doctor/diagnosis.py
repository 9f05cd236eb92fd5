"""What a check comes to. Pure."""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Diagnosis", "Grade", "Subject", "fail", "ok", "warn"]


class Grade(StrEnum):
    """How it is. Only what fails keeps Penstock from working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Diagnosis(NamedTuple):
    """What was found, and what the reader can do about it."""

    grade: Grade
    found: str
    hint: str = ""


class Subject(NamedTuple):
    """What is examined."""

    data_path: str
    host: str


def ok(found: str, hint: str = "") -> Diagnosis:
    return Diagnosis(Grade.OK, found, hint)


def warn(found: str, hint: str) -> Diagnosis:
    return Diagnosis(Grade.WARN, found, hint)


def fail(found: str, hint: str) -> Diagnosis:
    return Diagnosis(Grade.FAIL, found, hint)
