"""The options of nsq_to_file. Flags and defaults are NSQ's."""

import os
from dataclasses import dataclass

from penstock.common import names
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.errors import ConfigError
from penstock.common.logs import LogLevel
from penstock.common.option_types import BOOL, DURATION, INT, LOG_LEVEL, STRING, STRINGS
from penstock.common.options import option
from penstock.common.re2 import Pattern, PatternError
from penstock.tools.consumer_options import ConsumerOptions, check_source

__all__ = ["NsqToFileOptions", "check", "compile_topic_pattern", "has_revisions"]

# Higher than for auth servers: this expression is trusted, and may list many topics.
PATTERN_PARTS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToFileOptions(ConsumerOptions):
    """The options of nsq_to_file."""

    log_level: LogLevel = option(
        LogLevel.INFO,
        LOG_LEVEL,
        "minimum level of log lines: debug, info, warn, error or fatal",
        key=None,
    )
    log_prefix: str = option("[nsq_to_file] ", STRING, "prefix of every log line", key=None)

    topic: tuple[str, ...] = option((), STRINGS, "topic to write to files", key=None)
    topic_pattern: str = option(
        "", STRING, "RE2 regular expression: write only topics that match", key=None
    )
    topic_refresh_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "interval at which nsqlookupd is queried for topics if no -topic is given",
        key=None,
        at_least=MILLISECOND_NS,
    )
    channel: str = option("nsq_to_file", STRING, "channel to consume", key=None)

    output_dir: str = option("/tmp", STRING, "folder for completed files", key=None)  # noqa: S108
    work_dir: str = option(
        "",
        STRING,
        "folder for incomplete files, on the file system of -output-dir",
        key=None,
        default_text="the output folder",
    )
    filename_format: str = option(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        STRING,
        "format of file names, with <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> (revision)",
        key=None,
    )
    datetime_format: str = option("%Y-%m-%d_%H", STRING, "strftime format of <DATETIME>", key=None)
    host_identifier: str = option(
        "",
        STRING,
        "value of <HOST> in file names; may contain <SHORT_HOST> and <HOSTNAME>",
        key=None,
        default_text="the short hostname",
    )

    gzip: bool = option(False, BOOL, "compress files with gzip", key=None)
    gzip_level: int = option(
        6, INT, "gzip level, from 1 (fastest) to 9 (smallest)", key=None, at_least=1, at_most=9
    )
    skip_empty_files: bool = option(
        False, BOOL, "create a file only when there is a message for it", key=None
    )
    rotate_size: int = option(
        0,
        INT,
        "maximum size of a file in bytes, before compression; 0 for no limit",
        key=None,
        at_least=0,
    )
    rotate_interval_ns: int = option(
        0, DURATION, "maximum age of a file; 0 for no limit", key=None, at_least=0
    )
    sync_interval_ns: int = option(
        30 * SECOND_NS,
        DURATION,
        "maximum time until a message is synced to disk and finished",
        key=None,
        at_least=MILLISECOND_NS,
    )

    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS,
        DURATION,
        "timeout of connecting to nsqlookupd",
        key=None,
        at_least=MILLISECOND_NS,
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "timeout of a request to nsqlookupd",
        key=None,
        at_least=MILLISECOND_NS,
    )


def check(options: NsqToFileOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    if not names.is_valid(options.channel):
        raise ConfigError("--channel is required, and must be valid")
    check_source(options)
    if not options.topic and not options.topic_pattern:
        raise ConfigError("--topic or --topic-pattern required")
    if not options.topic and not options.lookupd_http_address:
        raise ConfigError("--lookupd-http-address must be specified when no --topic specified")
    if not all(map(names.is_valid, options.topic)):
        raise ConfigError("--topic is invalid")
    compile_topic_pattern(options)
    if has_revisions(options) and "<REV>" not in options.filename_format:
        raise ConfigError(
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        )
    for flag, path in (("output-dir", options.output_dir), ("work-dir", options.work_dir)):
        if os.path.exists(path) and not os.path.isdir(path):
            raise ConfigError(f"--{flag}: {path} is a file, not a folder")


def compile_topic_pattern(options: NsqToFileOptions) -> Pattern:
    """Compile `--topic-pattern`. Raises ConfigError if RE2 refuses it."""
    try:
        return Pattern(options.topic_pattern, parts_max=PATTERN_PARTS_MAX)
    except PatternError as error:
        raise ConfigError(
            f"--topic-pattern {options.topic_pattern!r} is not an RE2 regular expression: {error}"
        ) from None


def has_revisions(options: NsqToFileOptions) -> bool:
    """Whether a file name may already exist, so that names need a revision number."""
    has_work_dir = options.work_dir not in ("", options.output_dir)
    rotates = options.rotate_size > 0 or options.rotate_interval_ns > 0
    return options.gzip or rotates or has_work_dir
