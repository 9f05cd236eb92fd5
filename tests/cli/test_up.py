"""penstock up as a program: a cluster in one process."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.cli.programs import in_pipe, on_terminal, started

from penstock.storage import check_data_path
from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import has_etcd
from penstock.testing.waiting import wait_until

FREE_PORTS = ("--nsqd-port=0", "--lookupd-port=0", "--admin-port=0")
_ROW = re.compile(r"  (nsqlookupd|nsqd-\d)\s+tcp (\S+)\s+http (\S+)")


class Cluster:
    """A running `penstock up`; HTTP addresses by the name of the daemon."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        self.program = program
        self.said = ""
        while "Ctrl-C stops it." not in self.said:
            line = program.stdout.readline()
            assert line, f"it ended: {program.communicate()}"
            self.said += line
        rows = _ROW.findall(self.said)
        self.http = {name: http for name, _, http in rows}
        self.tcp = {name: tcp for name, tcp, _ in rows}

    def get(self, daemon: str, target: str) -> Any:
        connection = HTTPConnection(self.http[daemon], timeout=60)
        try:
            connection.request("GET", target)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        self.program.send_signal(number)
        out, err = self.program.communicate(timeout=120)
        return self.program.returncode, out, err


@contextmanager
def up(path: Path, *flags: str) -> Iterator[Cluster]:
    """Run `penstock up`, without nsqadmin unless the flags have a port for it."""
    admin = () if any("admin" in flag for flag in flags) else ("--no-admin",)
    flags = (f"--data-path={path}", "--nsqd-port=0", "--lookupd-port=0", *admin, *flags)
    with started("penstock", "up", *flags) as program:
        yield Cluster(program)


def test_one_command_starts_a_cluster_and_ctrl_c_stops_it(tmp_path: Path) -> None:
    with up(tmp_path / "data") as cluster:
        assert ["nsqlookupd", "nsqd-1"] == list(cluster.http)
        assert f"penstock pub greetings hello --nsqd-tcp-address {cluster.tcp['nsqd-1']}\n" in (
            cluster.said
        )
        nodes = wait_until(lambda: cluster.get("nsqlookupd", "/nodes")["producers"], "nsqd")
        assert "127.0.0.1" == nodes[0]["broadcast_address"]
        code, out, err = cluster.stop()

    assert (0, "") == (code, err)
    assert f"\nstopping\nstopped; messages stay in {tmp_path / 'data'}\n" == out


def test_nsqadmin_shows_the_cluster(tmp_path: Path) -> None:
    with up(tmp_path, "--admin-port=0") as cluster:
        (cluster.http["nsqadmin"],) = re.findall(r"  browse +http://(\S+)/\n", cluster.said)
        address = f"--nsqd-tcp-address={cluster.tcp['nsqd-1']}"
        assert 0 == in_pipe("penstock", "pub", "orders", "one", address).returncode
        wait_until(
            lambda: cluster.get("nsqadmin", "/api/topics")["topics"] == ["orders"], "the topic"
        )

        assert 0 == cluster.stop()[0]


def test_messages_survive_a_restart(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        address = f"--nsqd-tcp-address={cluster.tcp['nsqd-1']}"
        assert 0 == in_pipe("penstock", "pub", "orders", "kept", address).returncode
        assert 0 == cluster.stop(signal.SIGTERM)[0]
    assert [] == check_data_path(str(tmp_path / "nsqd-1"))
    with up(tmp_path) as cluster:
        address = f"--nsqd-tcp-address={cluster.tcp['nsqd-1']}"
        assert "kept\n" == in_pipe("penstock", "sub", "orders", "c", "-n1", address).stdout
        assert 0 == cluster.stop()[0]


def test_each_node_has_its_own_data_path_and_id(tmp_path: Path) -> None:
    with up(tmp_path, "--nsqd=3", "--retention-time=1h") as cluster:
        node_ids = set()
        for name in ("nsqd-1", "nsqd-2", "nsqd-3"):
            address = f"--nsqd-tcp-address={cluster.tcp[name]}"
            assert 0 == in_pipe("penstock", "pub", "orders", name, address).returncode
            log = cluster.get(name, "/topic/log?topic=orders")
            node_ids.add(log["node_id"])
            assert 3600 * 10**9 == log["retention"]["time_ns"]
            assert (tmp_path / name / "topics" / "orders").is_dir()
        lookupd = f"--lookupd-http-address={cluster.http['nsqlookupd']}"
        assert f"penstock top {lookupd.replace('=', ' ')}\n" in cluster.said
        read = in_pipe("penstock", "sub", "orders", "c", "-n3", lookupd)

        assert {1, 2, 3} == node_ids
        assert {"nsqd-1", "nsqd-2", "nsqd-3"} == set(read.stdout.split())
        assert 0 == cluster.stop()[0]


def test_a_node_can_be_drained_and_the_last_one_ends_it(tmp_path: Path) -> None:
    with up(tmp_path, "--nsqd=2") as cluster:
        assert 0 == in_pipe("penstock", "drain", cluster.http["nsqd-1"]).returncode
        assert "1.3.0" == cluster.get("nsqd-2", "/info")["version"]
        assert 0 == in_pipe("penstock", "drain", cluster.http["nsqd-2"]).returncode

        assert 0 == cluster.program.wait(120)


def test_ports_count_up_from_the_first(tmp_path: Path) -> None:
    flags = ["--nsqd=2", f"--data-path={tmp_path}", "--lookupd-port=0", "--no-admin"]
    with (
        _reserved_port_below_a_hundred_others() as port,
        started("penstock", "up", *flags, f"--nsqd-port={port}") as program,
    ):
        cluster = Cluster(program)

        assert f"127.0.0.1:{port}" == cluster.tcp["nsqd-1"]
        assert f"127.0.0.1:{port + 1}" == cluster.http["nsqd-1"]
        assert f"127.0.0.1:{port + 100}" == cluster.tcp["nsqd-2"]
        assert f"127.0.0.1:{port + 101}" == cluster.http["nsqd-2"]
        assert 0 == cluster.stop()[0]


@pytest.mark.parametrize("flag", ["--nsqd-port", "--lookupd-port", "--admin-port"])
def test_a_port_in_use_is_reported_in_one_line(flag: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [f"--data-path={tmp_path}", *FREE_PORTS, f"{flag}={port}"]
        done = in_pipe("penstock", "up", *flags)

    assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert "address already in use" in done.stderr.lower()
    assert done.stderr.endswith(f"; use {flag} to choose another\n")


def test_a_data_path_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        done = in_pipe("penstock", "up", f"--data-path={tmp_path}", *FREE_PORTS)

        assert (1, 1) == (done.returncode, done.stderr.count("\n"))
        assert str(tmp_path / "nsqd-1") in done.stderr
        assert 0 == cluster.stop()[0]


def test_an_invalid_data_path_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = in_pipe("penstock", "up", f"--data-path={tmp_path / 'file'}", *FREE_PORTS)

    assert (2, "") == (done.returncode, done.stdout)
    assert "is a file" in done.stderr


def test_it_stops_cleanly_after_its_terminal_is_closed(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        assert cluster.program.stdout is not None
        assert cluster.program.stderr is not None
        cluster.program.stdout.close()
        cluster.program.send_signal(signal.SIGHUP)
        assert 0 == cluster.program.wait(timeout=120)
        assert "" == cluster.program.stderr.read()


def test_ctrl_c_stops_it_on_a_terminal(tmp_path: Path) -> None:
    with on_terminal("penstock", "up", f"--data-path={tmp_path}", *FREE_PORTS) as terminal:
        terminal.see("Ctrl-C stops it.")
        terminal.press("\x03")
        code, shown = terminal.end()

    assert 0 == code
    assert "stopped; messages stay in" in shown


@contextmanager
def _reserved_port_below_a_hundred_others() -> Iterator[int]:
    """A free port, followed by free ports up to a hundred further on."""
    while True:
        with ExitStack() as stack:
            port = int(stack.enter_context(reserved_address()).rpartition(":")[2])
            try:
                for step in (1, 100, 101):
                    stack.enter_context(reserved_address(port + step))
            except (OSError, OverflowError):  # in use, or not a valid port
                continue
            yield port
            return


@pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it")
def test_replicas(tmp_path: Path) -> None:
    for published in (1, 2):  # The second run has the data of the first.
        with up(tmp_path / "data", "--replicas=3") as cluster:
            assert ["nsqlookupd", "nsqd-1", "nsqd-2", "nsqd-3"] == list(cluster.http)
            lookupd = f"--lookupd-http-address={cluster.http['nsqlookupd']}"
            done = in_pipe("penstock", "pub", "greetings", "hello", lookupd)
            assert 0 == done.returncode, done.stderr
            members = [f"nsqd-{number}" for number in (1, 2, 3)]
            wait_until(
                lambda: cluster.get("nsqd-1", "/replication")["in_sync"] == members,  # noqa: B023
                "the members to be in sync",
            )
            leader = cluster.get("nsqd-1", "/replication")["leader"]
            log = cluster.get(leader, "/topic/log?topic=greetings")
            assert published == log["next_seq"] - log["first_seq"]
            (line,) = re.findall(r"members +penstock (cluster members .*)", cluster.said)
            shown = in_pipe("penstock", *line.split())
            assert members == [row.split()[1] for row in shown.stdout.splitlines()[1:]]
            assert 0 == cluster.stop()[0]
    for name in members:
        assert not [each for each in check_data_path(tmp_path / "data" / name) if each.is_damage]


def test_replicas_without_etcd(tmp_path: Path) -> None:
    flags = (f"--data-path={tmp_path}", "--no-admin", "--nsqd-port=0", "--lookupd-port=0")
    done = in_pipe("penstock", "up", "--replicas=3", *flags, env={"PATH": str(tmp_path)})
    assert 1 == done.returncode
    assert "penstock: --replicas needs etcd, which is not installed: run apt-get install" in (
        done.stderr
    )
    done = in_pipe("penstock", "up", "--replicas=3", "--nsqd=2", *flags)
    assert 2 == done.returncode
    assert "--replicas and --nsqd cannot be used together" in done.stderr
