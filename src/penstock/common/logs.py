"""Log lines, in NSQ's format or as JSON, to stderr.

    [nsqd] 2026/11/15 19:05:08.600238 INFO: TCP: listening on 127.0.0.1:4150
    {"time":"2026-11-15T19:05:08.600238+00:00","level":"info","component":"nsqd","message":"..."}

A call has a message in printf style, and optional fields that only the JSON format contains:

    log.info("TOPIC(%s): created", name, topic=name)

Messages below `Logger.level`, which may be changed at any time, are not formatted. An event is one
line; newlines in messages are escaped. Only the traceback of `exception` takes several lines.

An error that may repeat at a high rate, such as a full disk, is logged at most once in
REPEAT_SECONDS for each cause:

    log.repeating_error("disk full", "[%s] - %s", address, error)
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from penstock.common.clock import SECOND_NS, Clock, SystemClock

__all__ = ["LogLevel", "Logger"]

# Minimum interval between log lines of a repeating error, for each cause.
REPEAT_SECONDS = 10.0

# Maximum causes counted separately; errors of further causes are counted together.
CAUSES_MAX = 100


class LogLevel(IntEnum):
    """Log levels; `GET /config/log_level` returns these numbers."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5

    @classmethod
    def parse(cls, text: str) -> "LogLevel":
        """Parse a level name in any case. Raises ValueError."""
        try:
            return cls[text.upper()]
        except KeyError:
            names = ", ".join(level.name.lower() for level in cls)
            raise ValueError(f"log level is one of {names}") from None


@dataclass(slots=True)
class _Repetition:
    """Errors of one cause that were suppressed since the last line was written."""

    until_ns: int
    suppressed: int = 0
    last: str = ""


class Logger:
    """Writes log lines of `level` and above."""

    __slots__ = ("_clock", "_format", "_repetitions", "_write", "level", "prefix")

    def __init__(
        self,
        prefix: str,
        level: LogLevel = LogLevel.INFO,
        *,
        json: bool = False,
        clock: Clock | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self.prefix = prefix
        self.level = level
        self._format = self._as_json if json else self._as_text
        self._clock = clock or SystemClock()
        self._write = write or _write_to_stderr
        self._repetitions: dict[str, _Repetition] = {}

    def debug(self, message: str, /, *args: object, **fields: object) -> None:
        """Log a detail about one connection or message; off by default."""
        if self.level <= LogLevel.DEBUG:
            self._log(LogLevel.DEBUG, message, args, fields)

    def info(self, message: str, /, *args: object, **fields: object) -> None:
        """Log a normal event."""
        if self.level <= LogLevel.INFO:
            self._log(LogLevel.INFO, message, args, fields)

    def warning(self, message: str, /, *args: object, **fields: object) -> None:
        """Log a probable mistake that has no effect yet."""
        if self.level <= LogLevel.WARN:
            self._log(LogLevel.WARN, message, args, fields)

    def error(self, message: str, /, *args: object, **fields: object) -> None:
        """Log an error after which the process continues."""
        if self.level <= LogLevel.ERROR:
            self._log(LogLevel.ERROR, message, args, fields)

    def repeating_error(self, cause: str, message: str, /, *args: object) -> None:
        """Logs an error that may repeat. The first error of a cause is written; further ones are
        counted for REPEAT_SECONDS, and then the last of them is written with their number."""
        if self.level > LogLevel.ERROR:
            return
        text = message % args if args else message
        if cause not in self._repetitions and len(self._repetitions) >= CAUSES_MAX:
            cause = ""
        repetition = self._repetitions.get(cause)
        if repetition is None:
            self.error("%s", text)
            self._repetitions[cause] = _Repetition(self._repeat_ns())
            return
        repetition.suppressed += 1
        repetition.last = text
        if self._clock.now_ns() >= repetition.until_ns:
            self._write_repetition(repetition)

    def flush_repeating(self, *, all_causes: bool = False) -> None:
        """Writes suppressed errors whose REPEAT_SECONDS have passed, or those of all causes. Call
        it periodically, so that the last errors of a series are logged."""
        now_ns = self._clock.now_ns()
        for cause, repetition in list(self._repetitions.items()):
            if not all_causes and now_ns < repetition.until_ns:
                continue
            if repetition.suppressed:
                self._write_repetition(repetition)
            else:
                del self._repetitions[cause]

    def _write_repetition(self, repetition: _Repetition) -> None:
        self.error(
            "%s (%d such errors in %g s)", repetition.last, repetition.suppressed, REPEAT_SECONDS
        )
        repetition.until_ns, repetition.suppressed = self._repeat_ns(), 0

    def _repeat_ns(self) -> int:
        return self._clock.now_ns() + round(REPEAT_SECONDS * SECOND_NS)

    def exception(
        self,
        message: str,
        /,
        *args: object,
        error: BaseException | None = None,
        **fields: object,
    ) -> None:
        """Logs an error with the traceback of `error`, by default the exception being handled. For
        bugs only."""
        if self.level <= LogLevel.ERROR:
            import traceback  # noqa: PLC0415 (only loaded after a bug)

            shown = error or sys.exception()
            text = "" if shown is None else "".join(traceback.format_exception(shown))
            self._log(LogLevel.ERROR, message, args, fields, text)

    def fatal(self, message: str, /, *args: object, **fields: object) -> None:
        """Log why the process exits. The caller exits."""
        self._log(LogLevel.FATAL, message, args, fields)

    def _log(
        self,
        level: LogLevel,
        message: str,
        args: tuple[object, ...],
        fields: dict[str, object],
        traceback: str = "",
    ) -> None:
        text = message % args if args else message
        self._write(self._format(level, text, fields, traceback))

    def _as_text(
        self, level: LogLevel, message: str, _fields: dict[str, object], traceback: str
    ) -> str:
        seconds, fraction_ns = divmod(self._clock.wall_ns(), 1_000_000_000)
        at = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds))
        label = "WARNING" if level is LogLevel.WARN else level.name  # nsq compat
        line = message.replace("\r", "\\r").replace("\n", "\\n")
        return f"{self.prefix}{at}.{fraction_ns // 1000:06d} {label}: {line}\n{traceback}"

    def _as_json(
        self, level: LogLevel, message: str, fields: dict[str, object], traceback: str
    ) -> str:
        from msgspec.json import encode  # noqa: PLC0415 (not needed to print a version or a usage)

        event: dict[str, object] = {
            "time": self._rfc3339(),
            "level": level.name.lower(),
            "component": self.prefix.strip("[] "),
            "message": message,
        }
        if traceback:
            event["traceback"] = traceback
        # `event` twice: its keys come first in the line, and fields cannot replace them.
        return encode({**event, **fields, **event}, enc_hook=str).decode() + "\n"

    def _rfc3339(self) -> str:
        seconds, fraction_ns = divmod(self._clock.wall_ns(), 1_000_000_000)
        local = time.localtime(seconds)
        zone = time.strftime("%z", local)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", local)
        return f"{at}.{fraction_ns // 1000:06d}{zone[:3]}:{zone[3:]}"


def _write_to_stderr(line: str) -> None:
    # A closed or broken stderr must not stop the daemon.
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(line)
            sys.stderr.flush()
