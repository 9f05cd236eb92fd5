from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.common.clock import SECOND_NS
from penstock.common.errors import ConfigError, UsageError
from penstock.common.option_types import BOOL, DURATION, FLOATS, INT, STRING, STRINGS
from penstock.common.options import (
    CommandLine,
    check_values,
    load_config,
    markdown_page,
    option,
    option_value,
    options_of,
    parse_flags,
    unknown_keys,
    usage,
    version_line,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    config: str = option("", STRING, "a file", key=None)
    loud: bool = option(False, BOOL, "be loud")
    size: int = option(10, INT, "how much", at_least=0, at_most=100)
    wait_ns: int = option(2 * SECOND_NS, DURATION, "how long", at_least=1)
    host: str = option(lambda: "this-machine", STRING, "where", default_text="hostname")
    method: str = option("get", STRING, "how", choices=("get", "post"))
    peers: tuple[str, ...] = option((), STRINGS, "who", flag="peer", key="all_peers")
    quantiles: tuple[float, ...] = option((), FLOATS, "which", flag="quantile")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {}),
        (["-size", "5"], {"size": 5}),
        (["--size", "5"], {"size": 5}),
        (["-size=5"], {"size": 5}),
        (["--size=5"], {"size": 5}),
        (["-size", "5", "-size", "6"], {"size": 6}),
        (["-size", "-5"], {"size": -5}),
        (["-wait", "1m"], {"wait_ns": 60 * SECOND_NS}),
        (["-host="], {"host": ""}),
        (["-host", ""], {"host": ""}),
        (["-host", "-loud"], {"host": "-loud"}),
        (["-host=a=b"], {"host": "a=b"}),
        (["-loud"], {"loud": True}),
        (["-loud=f"], {"loud": False}),
        (["-peer", "a", "-peer=b,c"], {"peers": ("a", "b,c")}),
        (["-quantile", "0.5,0.9", "-quantile=0.7"], {"quantiles": (0.9, 0.7, 0.5)}),
    ],
)
def test_flags_have_gos_syntax(args: list[str], expected: dict[str, object]) -> None:
    assert CommandLine(expected) == parse_flags(Options, args)


@pytest.mark.parametrize(
    ("args", "values", "rest"),
    [
        (["-loud", "false", "-size=5"], {"loud": True}, ("false", "-size=5")),
        (["-loud", "--", "-size=5"], {"loud": True}, ("-size=5",)),
        (["-loud", "-", "-size=5"], {"loud": True}, ("-", "-size=5")),
        (["", "-loud"], {}, ("", "-loud")),
    ],
)
def test_flags_end_at_the_first_argument_that_is_no_flag(
    args: list[str], values: dict[str, object], rest: tuple[str, ...]
) -> None:
    assert CommandLine(values, rest) == parse_flags(Options, args)


@pytest.mark.parametrize("flag", ["-h", "--h", "-help", "--help"])
def test_help_is_offered_before_later_mistakes(flag: str) -> None:
    assert parse_flags(Options, ["-loud", flag, "-nonsense"]).help_wanted


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-x"], "flag provided but not defined: -x"),
        (["--x=1"], "flag provided but not defined: -x"),
        (["-wait_ns=1s"], "flag provided but not defined: -wait_ns"),
        (["-loud2"], "flag provided but not defined: -loud2"),
        (["-size"], "flag needs an argument: -size"),
        (["-size", "x"], 'invalid value "x" for flag -size: parse error'),
        (["-size="], 'invalid value "" for flag -size: parse error'),
        (['-wait=a"b'], 'invalid value "a\\"b" for flag -wait: parse error'),
        (["-loud=maybe"], 'invalid boolean value "maybe" for -loud: parse error'),
        (["---loud"], "bad flag syntax: ---loud"),
        (["-=5"], "bad flag syntax: -=5"),
        (["--=5"], "bad flag syntax: --=5"),
    ],
)
def test_bad_flags_are_refused_in_gos_words(args: list[str], expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_flags(Options, args)

    assert expected == str(refused.value)


def write(folder: Path, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text)
    return str(path)


def test_a_file_gives_values_by_key_and_may_contain_other_keys(tmp_path: Path) -> None:
    path = write(tmp_path, 'size = 5\nwait = "1m"\nall_peers = ["a"]\nother = 1\n[table]\nloud = 1')

    expected = {"size": 5, "wait_ns": 60 * SECOND_NS, "peers": ("a",)}

    assert expected == load_config(Options, path)


def test_unknown_keys_are_reported_with_a_suggestion(tmp_path: Path) -> None:
    path = write(tmp_path, 'size = 5\nsizze = 5\nall-peers = ["a"]\n[elsewhere]\nsize = 1')

    assert [
        "sizze (did you mean size?)",
        "all-peers (did you mean all_peers?)",
        "elsewhere",
    ] == unknown_keys(Options, path)


def test_an_option_without_a_key_is_not_read_from_a_file(tmp_path: Path) -> None:
    assert {} == load_config(Options, write(tmp_path, 'config = "x"\nNone = 1'))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size = 'x'", "config file {}: size = 'x': must be an integer"),
        ("wait = '1 s'", "config file {}: wait = '1 s': not a duration: 1 s"),
        ("size = ", "failed to load config file {} - Invalid value (at end of document)"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)

    with pytest.raises(ConfigError) as refused:
        load_config(Options, path)

    assert expected.format(path) == str(refused.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match=r"^failed to load config file"):
        load_config(Options, str(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "none.toml")

    with pytest.raises(ConfigError) as refused:
        load_config(Options, path)

    assert f"failed to load config file {path} - No such file or directory" == str(refused.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"size": -1}, "--size must be from 0 to 100, not -1"),
        ({"size": 101}, "--size must be from 0 to 100, not 101"),
        ({"wait_ns": 0}, "--wait must be 1ns or more, not 0s"),
        ({"method": "put"}, "--method must be get or post, not put"),
    ],
)
def test_values_out_of_bounds_are_refused(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_values(Options(**values))

    assert expected == str(refused.value)


def test_values_on_their_bounds_are_accepted() -> None:
    check_values(Options(size=0, wait_ns=1))
    check_values(Options(size=100, method="post"))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("size", 10),
        ("wait", 2 * SECOND_NS),
        ("loud", False),
        ("host", "this-machine"),
        ("all_peers", []),
    ],
)
def test_values_can_be_read_by_key(key: str, expected: object) -> None:
    assert expected == option_value(Options(), key)


@pytest.mark.parametrize("key", ["peers", "peer", "wait_ns", "config", "", "None"])
def test_an_unknown_key_has_no_value(key: str) -> None:
    with pytest.raises(KeyError):
        option_value(Options(), key)


def test_the_usage_lists_flags_by_name_with_their_defaults() -> None:
    expected = (
        "Usage of thing:\n"
        "  -config string\n    \ta file\n"
        "  -host string\n    \twhere (default hostname)\n"
        "  -loud\n    \tbe loud\n"
        "  -method string\n    \thow (default get)\n"
        "  -peer string, repeatable\n    \twho\n"
        "  -quantile float, repeatable\n    \twhich\n"
        "  -size int\n    \thow much (default 10)\n"
        "  -wait duration\n    \thow long (default 2s)\n"
    )

    assert expected == usage(Options, "thing")


def test_the_page_has_a_row_for_every_option() -> None:
    page = markdown_page(Options, "thing")
    rows = [line for line in page.splitlines() if line.startswith("| `")]

    assert len(options_of(Options)) == len(rows)
    assert "| `-loud` | `loud` | bool | `false` | be loud |" in rows
    assert "| `-size` | `size` | int, from 0 to 100 | `10` | how much |" in rows
    assert "| `-wait` | `wait` | duration, 1ns or more | `2s` | how long |" in rows
    assert "| `-host` | `host` | string | hostname | where |" in rows
    assert "| `-config` |  | string |  | a file |" in rows
    assert "| `-method` | `method` | string, get or post | `get` | how |" in rows


def test_the_version_names_the_nsq_it_is_compatible_with() -> None:
    assert "nsqd v1.3.0 (built w/penstock0.1.0)" == version_line("nsqd")
