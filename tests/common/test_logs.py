import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from penstock.common.clock import SECOND_NS
from penstock.common.logs import CAUSES_MAX, REPEAT_SECONDS, Logger, LogLevel
from penstock.testing import ManualClock

AT_NS = 1_794_769_508_600_238_999  # 2026-11-15 19:05:08.600238999 UTC


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def in_kathmandu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone with an unusual offset (+05:45) and no daylight saving time."""
    monkeypatch.setenv("TZ", "<+0545>-5:45")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def logger(lines: list[str], level: LogLevel = LogLevel.INFO, *, json: bool = False) -> Logger:
    clock = ManualClock(wall_ns=AT_NS)
    return Logger("[nsqd] ", level, json=json, clock=clock, write=lines.append)


@pytest.mark.usefixtures("in_kathmandu")
def test_a_line_has_nsqs_format_in_local_time(lines: list[str]) -> None:
    logger(lines).info("TOPIC(%s): created", "orders", topic="orders")

    assert ["[nsqd] 2026/11/16 00:50:08.600238 INFO: TOPIC(orders): created\n"] == lines


@pytest.mark.usefixtures("in_kathmandu")
def test_json_has_one_object_per_line_with_fields(lines: list[str]) -> None:
    logger(lines, json=True).error("TOPIC(%s): gone", "a", topic="a", depth=3, level="mine")

    assert 1 == "".join(lines).count("\n")
    expected = {
        "time": "2026-11-16T00:50:08.600238+05:45",
        "level": "error",
        "component": "nsqd",
        "message": "TOPIC(a): gone",
        "topic": "a",
        "depth": 3,
    }

    assert expected == msgspec.json.decode(lines[0])


def test_values_that_json_cannot_represent_are_logged_as_text(lines: list[str]) -> None:
    logger(lines, json=True).info("failed", error=OSError("disk on fire"))

    assert "disk on fire" == msgspec.json.decode(lines[0])["error"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (LogLevel.DEBUG, ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]),
        (LogLevel.INFO, ["INFO", "WARNING", "ERROR", "FATAL"]),
        (LogLevel.WARN, ["WARNING", "ERROR", "FATAL"]),
        (LogLevel.ERROR, ["ERROR", "FATAL"]),
        (LogLevel.FATAL, ["FATAL"]),
    ],
)
def test_a_level_logs_itself_and_higher_levels(
    lines: list[str], level: LogLevel, expected: list[str]
) -> None:
    log = logger(lines, LogLevel.INFO)
    log.level = level

    for call in (log.debug, log.info, log.warning, log.error, log.fatal):
        call("x")

    assert expected == [line.split()[3].rstrip(":") for line in lines]


def test_nothing_is_formatted_when_the_level_is_off(lines: list[str]) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("formatted although it is not shown")

    logger(lines).debug("%s", Unprintable())

    assert [] == lines


def test_a_message_without_arguments_may_contain_percent_signs(lines: list[str]) -> None:
    logger(lines).info("100% done")

    assert lines[0].endswith("INFO: 100% done\n")


def test_a_peer_cannot_forge_a_log_line(lines: list[str]) -> None:
    logger(lines).info("client %s", "evil\r\n[nsqd] 2026/11/15 FATAL: all is lost")

    assert 1 == lines[0].count("\n")
    assert r"client evil\r\n[nsqd]" in lines[0]


@pytest.mark.parametrize("json", [False, True])
def test_an_exception_shows_where_it_came_from(lines: list[str], json: bool) -> None:
    log = logger(lines, json=json)
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError:
        log.exception("connection %d", 7)

    text = msgspec.json.decode(lines[0])["traceback"] if json else lines[0]

    assert "connection 7" in lines[0]
    assert "test_logs.py" in text
    assert text.endswith("ZeroDivisionError: a bug\n")


def test_lines_go_to_stderr_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    Logger("[nsqd] ").info("hello")

    assert capsys.readouterr().err.endswith("INFO: hello\n")


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_logging_to_a_closed_or_full_stderr_does_not_fail(stderr: str) -> None:
    program = "from penstock.common.logs import Logger; Logger('').info('x'); print('alive')"
    shell = f'"{sys.executable}" -c "{program}" {stderr}'
    done = subprocess.run(shell, shell=True, stdout=subprocess.PIPE, text=True, check=False)

    assert "alive\n" == done.stdout


class TestRepeatingErrors:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(wall_ns=AT_NS)

    @pytest.fixture
    def log(self, clock: ManualClock, lines: list[str]) -> Logger:
        return Logger("", clock=clock, write=lambda line: lines.append(line.split("ERROR: ")[1]))

    def test_the_first_error_of_a_cause_is_logged_and_others_are_counted(
        self, log: Logger, clock: ManualClock, lines: list[str]
    ) -> None:
        for number in range(5):
            log.repeating_error("disk full", "[%d] - disk full", number)
        log.repeating_error("exiting", "exiting")
        log.flush_repeating()
        at_first = list(lines)
        clock.advance(round(REPEAT_SECONDS * SECOND_NS))
        log.repeating_error("disk full", "[9] - disk full")

        assert ["[0] - disk full\n", "exiting\n"] == at_first
        assert ["[9] - disk full (5 such errors in 10 s)\n"] == lines[2:]

    def test_a_flush_logs_the_count_after_the_interval(
        self, log: Logger, clock: ManualClock, lines: list[str]
    ) -> None:
        for number in range(3):
            log.repeating_error("disk full", "[%d] - disk full", number)
        clock.advance(round(REPEAT_SECONDS * SECOND_NS))
        for _ in range(2):
            log.flush_repeating()
            clock.advance(round(REPEAT_SECONDS * SECOND_NS))
        log.repeating_error("disk full", "[3] - disk full")

        expected = [
            "[0] - disk full\n",
            "[2] - disk full (2 such errors in 10 s)\n",
            "[3] - disk full\n",
        ]
        assert expected == lines

    def test_a_flush_of_all_causes_does_not_wait(self, log: Logger, lines: list[str]) -> None:
        log.repeating_error("disk full", "first")
        log.repeating_error("disk full", "second")
        log.flush_repeating(all_causes=True)

        assert ["first\n", "second (1 such errors in 10 s)\n"] == lines

    def test_causes_are_bounded(self, log: Logger, lines: list[str]) -> None:
        for number in range(3 * CAUSES_MAX):
            log.repeating_error(f"cause {number}", "error")

        assert CAUSES_MAX + 1 == len(lines)

    def test_nothing_is_written_below_the_level(self, log: Logger, lines: list[str]) -> None:
        log.level = LogLevel.FATAL
        log.repeating_error("disk full", "first")
        log.flush_repeating(all_causes=True)

        assert [] == lines
