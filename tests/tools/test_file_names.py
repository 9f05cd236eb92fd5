"""What the files of nsq_to_file are called."""

import time
from typing import Any

import pytest

from penstock.common.errors import ConfigError
from penstock.tools.file_names import FileNames, revision
from penstock.tools.file_options import FileOptions

AT = 1_700_000_000  # 2023-11-14 22:13:20 UTC, a Tuesday


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def names(topic: str = "orders", **options: Any) -> FileNames:
    return FileNames(FileOptions(**options), topic, hostname="web1.example.com", pid=42)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "orders.web1.2023-11-14_22.log"),
        ({"gzip": True}, "orders.web1<REV>.2023-11-14_22.log.gz"),
        ({"gzip": True, "filename_format": "<TOPIC><REV>.gz"}, "orders<REV>.gz"),
        ({"rotate_size": 1}, "orders.web1<REV>.2023-11-14_22.log"),
        ({"rotate_interval_ns": 1}, "orders.web1<REV>.2023-11-14_22.log"),
        ({"work_dir": "/x"}, "orders.web1<REV>.2023-11-14_22.log"),
        ({"work_dir": "/tmp"}, "orders.web1.2023-11-14_22.log"),
        ({"host_identifier": "h"}, "orders.h.2023-11-14_22.log"),
        (
            {"host_identifier": "<SHORT_HOST>,<HOSTNAME>"},
            "orders.web1,web1.example.com.2023-11-14_22.log",
        ),
        (
            {"filename_format": "<TOPIC>/<DATETIME>/<PID><TOPIC>", "datetime_format": "%Y/%m/%d"},
            "orders/2023/11/14/42orders",
        ),
        (
            {
                "filename_format": "<DATETIME>",
                "datetime_format": "%a %A %b %B %d %H %I %m %M %p %S %y %Y %z %Z %%",
            },
            "Tue Tuesday Nov November 14 22 10 11 13 PM 20 23 2023 +0000 UTC %",
        ),
        # Letters that NSQ's tool does not know stay as they are.
        ({"filename_format": "<DATETIME>", "datetime_format": "%j %%d %"}, "%j %d %"),
    ],
)
def test_names(options: dict[str, Any], expected: str) -> None:
    assert expected == names(**options).at(AT)


def test_a_revision_has_six_digits() -> None:
    assert "a-000007.log" == revision("a<REV>.log", 7)
    assert "a-1234567.log" == revision("a<REV>.log", 1234567)


def test_no_topic_leads_out_of_the_folder() -> None:
    for format_ in ("<TOPIC>/<TOPIC>.log", "<TOPIC>", "a/<TOPIC>/<TOPIC>/b"):
        with pytest.raises(ConfigError, match="would not be in the output folder"):
            names("..", filename_format=format_)
    assert "...web1.2023-11-14_22.log" == names("..").at(AT)
    assert "./..log" == names(".", filename_format="<TOPIC>/<TOPIC>.log").at(AT)
    assert "orders.log" == names(filename_format="/<TOPIC>.log").at(AT)
