"""The helper that runs nsqd: what it promises to those who test with it."""

import os
import tempfile
from pathlib import Path

import pytest

from penstock.testing.nsqd import NsqdProcess, NsqdStartError, run_nsqd


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_serves_when_the_block_begins_and_is_gone_when_it_ends() -> None:
    with run_nsqd() as nsqd:
        pid, data_path = nsqd.pid, nsqd.data_path
        assert b"OK" == nsqd.http("GET", "/ping").body
        nsqd.publish("t", b"x")
        assert b"x" == nsqd.consumer("t", "c").message().body

    assert not exists(pid)
    assert not data_path.exists()


def test_it_is_gone_after_a_test_that_failed() -> None:
    pids = []

    def failing_test() -> None:
        with run_nsqd() as nsqd:
            pids.append(nsqd.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()

    assert not exists(pids[0])


def test_it_says_why_it_did_not_start(tmp_path: Path) -> None:
    with pytest.raises(NsqdStartError) as failure, run_nsqd("--no-such-flag", data_path=tmp_path):
        pass

    assert 2 == failure.value.exit_code
    assert "no-such-flag" in str(failure.value)


def test_restart_keeps_the_data_and_shows_the_new_log(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        nsqd.publish("t", b"x")
        first_pid = nsqd.pid
        nsqd.restart()

        assert first_pid != nsqd.pid
        assert 1 == nsqd.log.count("TCP: listening on")
        assert b"x" == nsqd.consumer("t", "c").message().body


def test_kill_is_not_a_clean_stop() -> None:
    with run_nsqd() as nsqd:
        nsqd.kill()

        assert not nsqd.is_running
        assert "bye" not in nsqd.log
        with pytest.raises(AssertionError, match="exit code"):
            nsqd.terminate()


def test_traceback_in_the_log_fails_the_test() -> None:
    with tempfile.TemporaryFile() as log_file:
        log_file.write(b"Traceback (most recent call last):\n")
        log_file.flush()
        nsqd = NsqdProcess(Path(), [], log_file.fileno())

        with pytest.raises(AssertionError, match="nsqd has a bug"):
            nsqd.check_log()


def test_log_can_be_read_afterwards() -> None:
    with run_nsqd() as nsqd:
        pass

    assert nsqd.log.rstrip().endswith("bye")
