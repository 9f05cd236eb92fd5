"""Options of the source and the sink, validated before the first request.

Names follow Spark's Kafka source where it has the same option, and are not case-sensitive. Unknown
options are errors: a misspelt `failOnDataLoss` would otherwise go unnoticed until data is lost.
"""

import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlsplit

from penstock.admin_api.blocking_api import BlockingApi
from penstock.client.config import ClientConfig
from penstock.common import names
from penstock.common.addresses import is_address
from penstock.common.durations import parse_duration
from penstock.common.errors import ConfigError
from penstock.net.http_client.blocking import BlockingHttpClient
from penstock.net.tls import client_context
from pyspark_nsq.offsets import EARLIEST, LATEST, AtTime, Position, from_json

__all__ = ["Access", "SinkOptions", "SourceOptions", "Topics", "base_url"]

# Default maximum messages per task: a few tenths of a second of work.
ROWS_PER_PARTITION = 200_000

# Interval between two queries to a lookupd. The client's default, a minute, is too long here.
LOOKUPD_SECONDS = 5.0

_ACCESS = (
    *("nsqd", "lookupd", "httpToken", "authSecret", "tls", "tlsRootCaFile", "tlsCert", "tlsKey"),
    *("tlsInsecureSkipVerify", "connectTimeout", "requestTimeout"),
)
_SOURCE = (
    *("topic", "topicPattern", "channel", "mode", "startingOffsets", "startingTimestamp"),
    *("endingOffsets", "endingTimestamp", "maxMessagesPerTrigger", "maxBytesPerTrigger"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "nodeTimeout", "idleWait"),
)
_SINK = ("topic", "maxMessageSize", "publishTimeout")
_SPARKS_OWN = ("checkpointLocation", "queryName")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Addresses and credentials of nsqd and nsqlookupd. `nsqds` and `lookupds` are base URLs.

    Can be pickled, for the executors.
    """

    nsqds: tuple[str, ...] = ()
    lookupds: tuple[str, ...] = ()
    http_token: str = field(default="", repr=False)
    auth_secret: str = field(default="", repr=False)
    tls: bool = False
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure_skip_verify: bool = False
    connect_seconds: float = 5.0
    request_seconds: float = 30.0

    def ssl_context(self) -> ssl.SSLContext:
        """Context for HTTPS. Raises ConfigError if a certificate or key file is invalid."""
        return client_context(
            root_ca=self.tls_root_ca_file,
            cert=self.tls_cert,
            key=self.tls_key,
            insecure_skip_verify=self.tls_insecure_skip_verify,
        )

    def http_api(self) -> BlockingApi:
        """Client of the HTTP APIs. Raises ConfigError if a certificate cannot be loaded."""
        has_own_tls = self.tls_root_ca_file or self.tls_cert or self.tls_insecure_skip_verify
        http = BlockingHttpClient(
            connect_timeout_seconds=self.connect_seconds,
            request_timeout_seconds=self.request_seconds,
            ssl_context=self.ssl_context() if has_own_tls else None,
        )
        return BlockingApi(http, self.http_token)

    def client_config(self) -> ClientConfig:
        """Configuration of the TCP client."""
        return ClientConfig(
            dial_timeout=self.connect_seconds,
            lookupd_poll_interval=LOOKUPD_SECONDS,
            auth_secret=self.auth_secret,
            tls_v1=self.tls,
            tls_root_ca_file=self.tls_root_ca_file,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_insecure_skip_verify=self.tls_insecure_skip_verify,
        )


def base_url(address: str) -> str:
    """Convert `host:port` or a URL to a base URL. Raises ConfigError for anything else."""
    url = address if "://" in address else f"http://{address}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not is_address(parts.netloc):
        raise ConfigError(f"invalid HTTP address (host:port): {address!r}")
    return f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics to read: these names, or all names that the pattern matches completely."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def matcher(self) -> Callable[[str], bool]:
        """A function that tells whether a topic is one of them. A pattern does not match ephemeral
        topics, which have no log."""
        if self.names:
            return frozenset(self.names).__contains__
        matches = re.compile(self.pattern).fullmatch
        return lambda topic: matches(topic) is not None and not names.is_ephemeral(topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of `spark.read` and `spark.readStream`."""

    access: Access
    topics: Topics
    channel: str = ""
    mode: str = "history"
    starting: Position = EARLIEST
    ending: Position = LATEST
    rows_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    partitions_min: int = 1
    rows_per_partition: int = ROWS_PER_PARTITION
    fail_on_data_loss: bool = True
    node_timeout_seconds: float = 60.0
    idle_wait_seconds: float | None = None
    """None to let the source choose by the number of logs."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> "SourceOptions":
        """By default a stream starts at the latest messages, a batch at the earliest. Raises
        ConfigError."""
        parser = OptionParser(given, (*_ACCESS, *_SOURCE))
        options = cls(
            access=parser.access(),
            topics=parser.topics(),
            channel=parser.name("channel"),
            mode=parser.one_of("mode", ("history", "channel")),
            starting=parser.position("starting", LATEST if streaming else EARLIEST),
            ending=parser.position("ending", LATEST),
            rows_per_trigger=parser.count("maxMessagesPerTrigger"),
            bytes_per_trigger=parser.count("maxBytesPerTrigger"),
            partitions_min=parser.count("minPartitions") or 1,
            rows_per_partition=parser.count("maxRecordsPerPartition") or ROWS_PER_PARTITION,
            fail_on_data_loss=parser.flag("failOnDataLoss", default=True),
            node_timeout_seconds=parser.seconds("nodeTimeout", 60.0),
            idle_wait_seconds=parser.maybe_seconds("idleWait"),
        )
        if options.mode == "channel" and (not options.channel or len(options.topics.names) != 1):
            raise ConfigError("mode=channel requires exactly one topic, and a channel")
        if options.mode == "history":
            for name in filter(names.is_ephemeral, (*options.topics.names, options.channel)):
                raise ConfigError(f"{name} is ephemeral and has no history")
        if options.ending == EARLIEST:
            raise ConfigError("endingOffsets must not be earliest")
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of `df.write` and `df.writeStream`."""

    access: Access
    topic: str = ""
    size_max: int | None = None
    publish_seconds: float = 60.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "SinkOptions":
        """Parse the options of a sink. Raises ConfigError if an option is unknown or invalid."""
        parser = OptionParser(given, (*_ACCESS, *_SINK))
        return cls(
            access=parser.access(),
            topic=parser.name("topic"),
            size_max=parser.count("maxMessageSize"),
            publish_seconds=parser.seconds("publishTimeout", 60.0),
        )


class OptionParser:
    """Parses options, which Spark passes as text. Names are not case-sensitive."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): text.strip() for name, text in given.items()}
        allowed = {name.lower() for name in (*known, *_SPARKS_OWN)}
        unknown = sorted(self._given.keys() - allowed)
        if unknown:
            raise ConfigError(f"unknown option {unknown[0]!r}; known options: {', '.join(known)}")

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "")

    def listed(self, name: str) -> tuple[str, ...]:
        parts = (part.strip() for part in self.text(name).split(","))
        return tuple(dict.fromkeys(filter(None, parts)))

    def flag(self, name: str, *, default: bool = False) -> bool:
        word = self.text(name).lower()
        if word not in ("", "true", "false"):
            raise ConfigError(f"{name} must be true or false, not {word!r}")
        return word == "true" if word else default

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 63):
            raise ConfigError(f"{name} must be a positive integer, not {text!r}")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        """Parse a duration such as 500ms, 10s or 5m."""
        seconds = self.maybe_seconds(name)
        return default if seconds is None else seconds

    def maybe_seconds(self, name: str) -> float | None:
        """Parse a duration; None if the option is not given."""
        text = self.text(name)
        if not text:
            return None
        try:
            return parse_duration(text) / 1e9
        except ValueError:
            raise ConfigError(f"{name} must be a duration such as 10s, not {text!r}") from None

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        word = self.text(name).lower() or choices[0]
        if word not in choices:
            raise ConfigError(f"{name} must be {' or '.join(choices)}, not {word!r}")
        return word

    def name(self, option: str) -> str:
        """Name of a topic or a channel; empty if the option is missing."""
        return _checked(option, self.text(option)) if self.text(option) else ""

    def topics(self) -> Topics:
        listed, pattern = self.listed("topic"), self.text("topicPattern")
        if bool(listed) == bool(pattern):
            raise ConfigError("exactly one of topic and topicPattern is required")
        try:
            re.compile(pattern)
        except re.error as failure:
            raise ConfigError(f"topicPattern {pattern!r}: {failure}") from None
        return Topics(tuple(_checked("topic", name) for name in listed), pattern)

    def access(self) -> Access:
        nsqds, lookupds = self.listed("nsqd"), self.listed("lookupd")
        if not nsqds and not lookupds:
            raise ConfigError("nsqd or lookupd is required: HTTP addresses, host:port")
        if bool(self.text("tlsCert")) != bool(self.text("tlsKey")):
            raise ConfigError("tlsCert and tlsKey must be given together")
        return Access(
            nsqds=tuple(map(base_url, nsqds)),
            lookupds=tuple(map(base_url, lookupds)),
            http_token=self.text("httpToken"),
            auth_secret=self.text("authSecret"),
            tls=self.flag("tls"),
            tls_root_ca_file=self.text("tlsRootCaFile"),
            tls_cert=self.text("tlsCert"),
            tls_key=self.text("tlsKey"),
            tls_insecure_skip_verify=self.flag("tlsInsecureSkipVerify"),
            connect_seconds=self.seconds("connectTimeout", 5.0),
            request_seconds=self.seconds("requestTimeout", 30.0),
        )

    def position(self, side: str, default: Position) -> Position:
        """Parse `startingOffsets` and `startingTimestamp`, or those of the end."""
        offsets, timestamp = self.text(f"{side}Offsets"), self.text(f"{side}Timestamp")
        if offsets and timestamp:
            raise ConfigError(f"{side}Offsets and {side}Timestamp exclude each other")
        if timestamp:
            return AtTime(_time_ns(f"{side}Timestamp", timestamp))
        if offsets.lower() in ("earliest", "latest"):
            return EARLIEST if offsets.lower() == "earliest" else LATEST
        if not offsets:
            return default
        try:
            return from_json(json.loads(offsets), lowest=EARLIEST)
        except ValueError:
            raise ConfigError(
                f"{side}Offsets must be earliest, latest or JSON, not {offsets!r}"
            ) from None


def _checked(option: str, name: str) -> str:
    if not names.is_valid(name):
        raise ConfigError(f"{option} {name!r} is not a valid name")
    return name


def _time_ns(option: str, text: str) -> int:
    """Parse milliseconds since 1970, as in Spark, or ISO 8601; UTC if there is no time zone."""
    if text.isascii() and text.isdecimal():
        return int(text) * 1_000_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} must be milliseconds or ISO 8601, not {text!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
