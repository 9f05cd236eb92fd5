"""The nsqlookupd command as a shell sees it, up to the point where the daemon would start."""

import subprocess
import sys
from pathlib import Path

import pytest


def nsqlookupd(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.nsqlookupd", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_version_is_printed_on_one_line() -> None:
    done = nsqlookupd("-version")

    assert (0, "nsqlookupd v1.3.0 (built w/penstock0.1.0)\n") == (done.returncode, done.stdout)


def test_help_exits_with_0() -> None:
    done = nsqlookupd("-h")

    assert 0 == done.returncode
    assert done.stderr.startswith("Usage of nsqlookupd:\n")


def test_a_wrong_command_line_shows_the_usage_and_exits_2() -> None:
    done = nsqlookupd("-data-path=x")
    first, second, *_ = done.stderr.splitlines()

    expected = (2, "flag provided but not defined: -data-path", "Usage of nsqlookupd:")
    assert expected == (done.returncode, first, second)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-tcp-address="], "FATAL: --tcp-address must not be empty"),
        (["-http-address="], "FATAL: --http-address must not be empty"),
        (["-max-connections=-1"], "FATAL: --max-connections must be 0 or more, not -1"),
        (["-tombstone-lifetime=-1s"], "FATAL: --tombstone-lifetime must be 0s or more, not -1s"),
        (["-tls-cert=x.pem"], "FATAL: --tls-cert and --tls-key must be set together"),
        (
            ["-tls-client-auth-policy=require"],
            "FATAL: --tls-client-auth-policy needs --tls-cert and --tls-key",
        ),
        (
            ["-tls-cert=x.pem", "-tls-key=x.key"],
            "FATAL: failed to build TLS config - TLS certificate x.pem: No such file or directory",
        ),
        (["-config=none.cfg"], "FATAL: failed to load config file none.cfg - No such file"),
        (["-tcp-address=4160"], "FATAL: listen (4160) failed - missing port in address"),
        (["-http-address=4161"], "FATAL: listen (4161) failed - missing port in address"),
        (["-http-address=127.0.0.1:70000"], "FATAL: listen (127.0.0.1:70000) failed - 70000 is"),
    ],
)
def test_a_startup_error_exits_1(args: list[str], expected: str) -> None:
    done = nsqlookupd(*args)

    assert 1 == done.returncode
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_flag_overrides_the_config_file_and_unknown_keys_are_warned_of(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text('tcp_address = "127.0.0.1:99999"\nhttp_adress = ""\n')

    done = nsqlookupd(f"-config={config}", "-http-address=127.0.0.1:0", "-verbose", "stray")

    assert 1 == done.returncode
    assert "FATAL: listen (127.0.0.1:99999) failed - 99999 is no port" in done.stderr
    assert "unknown option http_adress (did you mean http_address?)" in done.stderr
    assert "WARNING: arguments after the flags have no effect: stray" in done.stderr
    assert "WARNING: --verbose is deprecated and has no effect, use --log-level" in done.stderr
