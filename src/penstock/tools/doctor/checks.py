"""All checks, in the order of the output."""

from collections.abc import Callable, Iterator

from penstock.tools.doctor import disk, machine
from penstock.tools.doctor.diagnosis import Diagnosis, Subject, warn

__all__ = ["CHECKS", "examine"]

CHECKS: dict[str, Callable[[Subject], Diagnosis]] = {
    "python": lambda _: machine.python(),
    "uvloop": lambda _: machine.package("uvloop"),
    "httptools": lambda _: machine.package("httptools"),
    "google-crc32c": lambda _: machine.checksums(),
    "spark": lambda _: machine.spark(),
    "java": lambda _: machine.java(),
    "data path": lambda subject: disk.data_path(subject.data_path),
    "file system": lambda subject: disk.file_system(subject.data_path),
    "free disk": lambda subject: disk.free_space(subject.data_path),
    "fsync": lambda subject: disk.fsync(subject.data_path),
    "open files": lambda _: machine.open_files(),
    "memory": lambda _: machine.memory(),
    "cores": lambda _: machine.cores(),
    "clock": lambda _: machine.clock(),
    "nsqd tcp": lambda subject: machine.port(subject.host, 4150, "nsqd"),
    "nsqd http": lambda subject: machine.port(subject.host, 4151, "nsqd"),
    "nsqlookupd tcp": lambda subject: machine.port(subject.host, 4160, "nsqlookupd"),
    "nsqlookupd http": lambda subject: machine.port(subject.host, 4161, "nsqlookupd"),
    "nsqadmin http": lambda subject: machine.port(subject.host, 4171, "nsqadmin"),
}


def examine(subject: Subject) -> Iterator[tuple[str, Diagnosis]]:
    """Run all checks. A check that this system does not support is a warning."""
    for name, check in CHECKS.items():
        try:
            yield name, check(subject)
        except OSError as error:
            yield name, warn("unknown", str(error))
