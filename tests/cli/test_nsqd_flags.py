"""The nsqd command as a shell sees it, up to the point where the daemon would start."""

import subprocess
import sys
from pathlib import Path

import pytest


def nsqd(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.nsqd", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("flag", ["-version", "--version", "-version=true"])
def test_the_version_is_printed_on_one_line(flag: str) -> None:
    done = nsqd(flag)

    assert 0 == done.returncode
    assert "nsqd v1.3.0 (built w/penstock0.1.0)\n" == done.stdout


def test_parsing_imports_neither_the_loop_nor_the_tools() -> None:
    program = (
        "import sys; from penstock.cli.nsqd import main; main(['-version']);"
        "print(sorted({'asyncio', 'uvloop', 'click', 'rich', 'msgspec', 'socket', 'pyspark'}"
        " & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )

    assert "[]" == done.stdout.splitlines()[-1]


def test_help_exits_with_0() -> None:
    done = nsqd("-h")

    assert 0 == done.returncode
    assert done.stderr.startswith("Usage of nsqd:\n")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-nonsense"], "flag provided but not defined: -nonsense"),
        (
            ["-mem-queue-size=many"],
            'invalid value "many" for flag -mem-queue-size: parse error',
        ),
        (["-snappy=maybe"], 'invalid boolean value "maybe" for -snappy: parse error'),
        (
            ["-log-level", "loud"],
            'invalid value "loud" for flag -log-level: must be debug, info, warn, error or fatal',
        ),
        (["-max-rdy-count"], "flag needs an argument: -max-rdy-count"),
    ],
)
def test_a_wrong_command_line_shows_the_usage_and_exits_2(args: list[str], expected: str) -> None:
    done = nsqd(*args)
    first, second, *_ = done.stderr.splitlines()

    assert (2, expected, "Usage of nsqd:") == (done.returncode, first, second)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-node-id=1024"], "FATAL: --node-id must be from 0 to 1023, not 1024"),
        (["-tls-cert=x.pem"], "FATAL: --tls-cert and --tls-key must be set together"),
        (["-config=none.cfg"], "FATAL: failed to load config file none.cfg - No such file"),
    ],
)
def test_a_startup_error_is_one_line_and_exits_1(args: list[str], expected: str) -> None:
    done = nsqd(*args)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert expected in done.stderr


def test_a_fatal_line_has_the_format_and_prefix_asked_for() -> None:
    done = nsqd("-log-format=json", "-log-prefix=[east] ", "-node-id=-1")

    assert '"level":"fatal","component":"east"' in done.stderr


def test_a_flag_overrides_the_config_file_which_overrides_the_default(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text("id = 2000\nmax_deflate_level = 99\n")

    from_file = nsqd(f"-config={config}", "-max-deflate-level=5")
    from_flag = nsqd(f"-config={config}", "-node-id=5")

    assert "--node-id must be from 0 to 1023, not 2000" in from_file.stderr
    assert "--max-deflate-level must be from 1 to 9, not 99" in from_flag.stderr


def test_ignored_settings_are_warned_of(tmp_path: Path) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    config = tmp_path / "nsqd.cfg"
    config.write_text("mem_queue_sizze = 5\n")

    flags = ("-verbose", "-worker-id=false", f"-data-path={not_a_folder}", f"-config={config}")
    done = nsqd(*flags, "stray", "-snappy=no")

    assert 1 == done.returncode
    assert "WARNING: arguments after the flags have no effect: stray -snappy=no" in done.stderr
    assert (
        f"WARNING: config file {config}: unknown option "
        "mem_queue_sizze (did you mean mem_queue_size?)" in done.stderr
    )
    assert "WARNING: --verbose is deprecated and has no effect, use --log-level" in done.stderr
    assert "WARNING: --worker-id is deprecated and has no effect, use --node-id" in done.stderr
