"""The tools as a shell sees them, up to the point where they would start to work."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from penstock.common.options import markdown_tables

TOOLS = ["nsq_tail", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq"]

NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
TOPIC = "--topic=t"
DESTINATION = "--destination-nsqd-tcp-address=127.0.0.1:1"
POST = "--post=http://127.0.0.1:1/"

# The required flags of each tool, besides the source.
ENOUGH = {
    "nsq_tail": [TOPIC],
    "nsq_to_file": [TOPIC],
    "nsq_to_http": [TOPIC, POST],
    "nsq_to_nsq": [TOPIC, DESTINATION],
}


PRODUCERS = ["nsq_to_nsq", "to_nsq"]


def run(tool: str, *args: str) -> int:
    code = import_module(f"penstock.cli.{tool}").main(args)
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("tool", TOOLS)
def test_the_version_is_printed_on_one_line(tool: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert 0 == run(tool, "--version")
    assert f"{tool} v1.3.0 (built w/penstock0.1.0)\n" == capfd.readouterr().out


@pytest.mark.parametrize("tool", TOOLS)
def test_a_wrong_command_line_shows_the_usage(tool: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert 2 == run(tool, "--frobnicate")
    first, second, *_ = capfd.readouterr().err.splitlines()

    expected = ("flag provided but not defined: -frobnicate", f"Usage of {tool}:")
    assert expected == (first, second)


@pytest.mark.parametrize(
    ("tool", "flag"),
    [*((tool, "consumer-opt") for tool in ENOUGH), *((t, "producer-opt") for t in PRODUCERS)],
)
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("nope,1", "unknown option 'nope'"),
        ("nope", "unknown option 'nope'"),
        ("", "unknown option ''"),
        ("max_attempts,x", "invalid value of option max_attempts: 'x'"),
        ("max_attempts,-1", "max_attempts must not be negative: -1"),
        ("snappy,maybe", "invalid value of option snappy: 'maybe'"),
        ("dial_timeout,5", "invalid value of option dial_timeout: '5'"),
        ("sample_rate,200", "sample_rate must be a percentage from 0 to 99, not 200"),
        ("tls_min_version,9", "tls_min_version must be tls1.0, tls1.1, tls1.2 or tls1.3, not '9'"),
    ],
)
def test_an_invalid_client_option_is_an_error_of_the_command_line(
    tool: str, flag: str, value: str, complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert 2 == run(tool, f"--{flag}={value}")
    first, second, *_ = capfd.readouterr().err.splitlines()

    expected = f'invalid value "{value}" for flag -{flag}: {complaint}'
    assert (expected, f"Usage of {tool}:") == (first, second)


@pytest.mark.parametrize("tool", ENOUGH)
@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ([], "--nsqd-tcp-address or --lookupd-http-address required"),
        ([NSQD, LOOKUPD], "use --nsqd-tcp-address or --lookupd-http-address not both"),
        ([NSQD, "--max-in-flight=0"], "--max-in-flight must be 1 or more, not 0"),
        ([NSQD, "--consumer-opt=snappy", "--consumer-opt=deflate,true"], "cannot both be enabled"),
        (["--nsqd-tcp-address=nowhere"], "not an address (host:port): 'nowhere'"),
    ],
)
def test_every_consumer_tool_requires_an_address_and_a_topic(
    tool: str, args: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_fatal(tool, [*ENOUGH[tool], *args], complaint, capfd)


@pytest.mark.parametrize("tool", ["nsq_tail", "nsq_to_file", "nsq_to_http"])
def test_an_nsqd_that_cannot_be_reached_is_named(
    tool: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_fatal(tool, [*ENOUGH[tool], NSQD], "127.0.0.1:1: Connection refused", capfd)


@pytest.mark.parametrize(
    ("tool", "args", "complaint"),
    [
        ("nsq_tail", [NSQD], "--topic required"),
        ("nsq_tail", [NSQD, "--topic=a b"], "topic name 'a b' is not valid"),
        ("nsq_tail", [NSQD, TOPIC, "-n=-1"], "--n must be 0 or more, not -1"),
        ("to_nsq", [NSQD], "--topic required"),
        ("to_nsq", [NSQD, "--topic=a b"], "--topic is invalid"),
        ("to_nsq", [TOPIC], "--nsqd-tcp-address required"),
        ("to_nsq", [TOPIC, NSQD, "--delimiter="], "--delimiter must be a single byte"),
        ("to_nsq", [TOPIC, NSQD, "--delimiter=é"], "--delimiter must be a single byte"),
        ("to_nsq", [TOPIC, NSQD], "127.0.0.1:1: Connection refused"),
        ("nsq_to_nsq", [NSQD, DESTINATION], "--topic and --channel are required"),
        ("nsq_to_nsq", [NSQD, DESTINATION, TOPIC, "--channel="], "--topic and --channel are"),
        ("nsq_to_nsq", [NSQD, DESTINATION, "--topic=a b"], "--topic is invalid"),
        ("nsq_to_nsq", [NSQD, TOPIC], "--destination-nsqd-tcp-address required"),
        (
            "nsq_to_nsq",
            [NSQD, TOPIC, DESTINATION, "--destination-topic=a b"],
            "--destination-topic is invalid",
        ),
        ("nsq_to_nsq", [NSQD, TOPIC, DESTINATION], "127.0.0.1:1: Connection refused"),
        ("nsq_to_file", [NSQD], "--topic or --topic-pattern required"),
        ("nsq_to_file", [NSQD, "--topic-pattern=x"], "--lookupd-http-address must be specified"),
        (
            "nsq_to_file",
            [LOOKUPD, "--topic-pattern=(?=a)"],
            "invalid or unsupported syntax after (?",
        ),
        ("nsq_to_file", [LOOKUPD, "--topic-pattern=("], "--topic-pattern '(' is not an RE2"),
        ("nsq_to_file", [NSQD, TOPIC, f"--output-dir={__file__}"], "is a file, not a folder"),
        ("nsq_to_file", [NSQD, TOPIC, "--gzip", "a", "b"], "unknown arguments: a b"),
        ("nsq_to_file", [NSQD, TOPIC, "--gzip-level=10"], "--gzip-level must be from 1 to 9"),
        (
            "nsq_to_file",
            [NSQD, TOPIC, "--gzip", "--filename-format=<TOPIC>"],
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled",
        ),
        ("nsq_to_http", [NSQD, POST], "--topic and --channel are required"),
        ("nsq_to_http", [NSQD, TOPIC], "--get or --post required"),
        ("nsq_to_http", [NSQD, TOPIC, POST, "--get=x%s"], "use --get or --post not both"),
        (
            "nsq_to_http",
            [NSQD, TOPIC, "--get=http://x/%s%s"],
            "invalid GET address - must be a printf string",
        ),
        ("nsq_to_http", [NSQD, TOPIC, "--post=ftp://x"], "not an http:// or https:// URL"),
        ("nsq_to_http", [NSQD, TOPIC, POST, "--sample=1.5"], "--sample must be from 0.0 to 1.0"),
        ("nsq_to_http", [NSQD, TOPIC, POST, "--header=x"], "--header must be 'Key: Value'"),
        ("nsq_to_http", [NSQD, TOPIC, POST, "--header=Host: x"], "--header Host is not allowed"),
        (
            "nsq_to_http",
            [NSQD, TOPIC, "--get=http://x/%s", "--content-type=text/plain"],
            "--content-type only used with --post",
        ),
        ("nsq_to_http", [NSQD, TOPIC, POST, "--content-type="], "--content-type requires a value"),
    ],
)
def test_a_startup_error_is_one_line_and_exits_1(
    tool: str, args: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_fatal(tool, args, complaint, capfd)


def assert_fatal(
    tool: str, args: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert 1 == run(tool, *args)
    captured = capfd.readouterr()
    *before, last = captured.err.splitlines()

    assert complaint in last
    assert last.startswith(f"[{tool}] ")
    assert " FATAL: " in last
    assert "" == captured.out
    assert [] == [line for line in before if "WARNING: " not in line]


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_is_a_command_when_penstock_is_installed(tool: str) -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())

    assert f"penstock.cli.{tool}:main" == pyproject["project"]["scripts"][tool]


def test_the_page_of_options_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs/reference/tools_options.md"
    commands = [import_module(f"penstock.cli.{tool}").COMMAND for tool in TOOLS]
    expected = markdown_tables({command.name: command.options for command in commands})

    assert expected == page.read_text(), "run 'make docs'"
