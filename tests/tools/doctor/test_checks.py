"""The checks, run against real ports, files and processes."""

import os
import socket
from pathlib import Path

import pytest

from penstock.storage import DataPath, LogSettings
from penstock.testing.nsqd import run_nsqd
from penstock.tools.doctor import Grade, Subject, checks, examine
from penstock.tools.doctor.disk import data_path
from penstock.tools.doctor.machine import port


def test_the_machine_that_runs_the_tests_passes(tmp_path: Path) -> None:
    """Except for the ports, which may be in use."""
    diagnoses = dict(examine(Subject(str(tmp_path), "127.0.0.1")))

    assert list(checks.CHECKS) == list(diagnoses)
    assert {} == {
        name: diagnosis
        for name, diagnosis in diagnoses.items()
        if diagnosis.grade is Grade.FAIL or diagnosis.found == "unknown"
    }
    assert [] == list(tmp_path.iterdir())


class TestPorts:
    def test_a_running_nsqd_is_named_with_its_version(self) -> None:
        with run_nsqd() as nsqd:
            http, tcp = (
                port("127.0.0.1", int(address.rpartition(":")[2]), "nsqd")
                for address in (nsqd.http_address, nsqd.tcp_address)
            )
            owner = f"is used by penstock.cli.nsqd (process {nsqd.pid})"

        assert (Grade.OK, Grade.OK) == (http.grade, tcp.grade)
        assert http.found.endswith(f"{owner}, version 1.3.0")
        assert tcp.found.endswith(owner)

    def test_another_process_on_the_port_is_a_warning(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            number = server.getsockname()[1]
            taken = port("127.0.0.1", number, "nsqd")
        free = port("127.0.0.1", number, "nsqd")

        assert Grade.WARN is taken.grade
        assert taken.found.endswith(f"(process {os.getpid()})")
        assert (Grade.OK, f"{number} is free") == free[:2]

    def test_a_foreign_address_fails(self) -> None:
        assert Grade.FAIL is port("192.0.2.1", 4150, "nsqd").grade


class TestDataPath:
    def test_a_data_path_in_use_is_reported(self, tmp_path: Path) -> None:
        opened = DataPath.open(str(tmp_path), LogSettings())
        in_use = data_path(str(tmp_path))
        opened.close()

        assert (Grade.OK, f"{tmp_path}, in use by a running nsqd") == in_use[:2]
        assert (Grade.OK, f"{tmp_path}, a Penstock data path") == data_path(str(tmp_path))[:2]

    def test_a_data_path_of_another_nsqd_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "t.diskqueue.000000.dat").touch()
        diagnosis = data_path(str(tmp_path))

        assert Grade.FAIL is diagnosis.grade
        assert "penstock import" in diagnosis.found

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_data_path_without_write_permission_is_reported(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)

        assert Grade.FAIL is data_path(str(tmp_path / "new")).grade
