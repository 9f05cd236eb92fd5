"""A copy of the data path, made while nsqd is suspended, is complete."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.crash.leader import RunNsqd

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.crash

PAGE = Path(__file__).parents[2] / "docs/how_to/back_up.md"


class Load:
    """Publishes messages in a thread; `acknowledged` is the number of OKs."""

    def __init__(self, nsqd: NsqdProcess) -> None:
        self.acknowledged = 0
        self._producer = nsqd.connect()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._producer.call(commands.pub("orders", b"%d" % self.acknowledged))
            self.acknowledged += 1


@pytest.mark.on_leader
def test_the_documented_backup_contains_all_acknowledged_messages(
    run_nsqd: RunNsqd, tmp_path: Path
) -> None:
    """The same holds for a snapshot of the file system."""
    machine = Machine(tmp_path)
    backup, restore = machine.commands()
    with run_nsqd("--max-bytes-per-file=16384", data_path=machine.data_path) as nsqd:
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=billing")
        load = Load(nsqd)
        wait_until(lambda: load.acknowledged >= 1000, "messages")
        acknowledged = load.acknowledged
        checked = machine.run(backup, nsqd.pid)
        wait_until(lambda: load.acknowledged > acknowledged + 100, "nsqd to continue")
        load.stop()
        nsqd.publish("orders", b"after the backup")

    assert (0, "") == (checked.returncode, checked.stderr), checked.stdout
    assert not (machine.backup / "nsqd").is_symlink()
    restored = machine.run(restore, 0)
    assert (0, "") == (restored.returncode, restored.stderr), restored.stdout
    # Documented for replicated nodes: otherwise nsqd does not start on the copy.
    (machine.data_path / "penstock.member").unlink(missing_ok=True)
    with run_nsqd(data_path=machine.data_path) as copy:
        assert acknowledged <= copy.stats("orders", "billing")["depth"]
        consumer = copy.consumer("orders", "billing", rdy=100)
        got = set()
        for _ in range(acknowledged):
            message = consumer.message()
            consumer.send(commands.fin(message.id))
            got.add(message.body)
    assert {b"%d" % number for number in range(acknowledged)} == got


class Machine:
    """The folders of docs/how_to/back_up.md, inside a folder of the test.

    As with a systemd dynamic user, /var/lib/penstock/nsqd is a symbolic link into /var/lib/private.
    """

    def __init__(self, root: Path) -> None:
        self.backup = root / "backup"
        self.backup.mkdir()
        self._lib = root / "lib"
        private = self._lib / "private/penstock/nsqd"
        private.mkdir(parents=True)
        self.data_path = self._lib / "penstock/nsqd"
        self.data_path.parent.mkdir()
        self.data_path.symlink_to(private)

    def commands(self) -> tuple[str, str]:
        """The two code blocks of the page: backup and restore."""
        text = PAGE.read_text(encoding="utf-8")
        backup, restore = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        return backup, restore

    def run(self, commands: str, pid: int) -> subprocess.CompletedProcess[str]:
        """Run commands in a shell, with a systemctl that sends signals to process `pid`."""
        here = commands.replace("/var/lib/", f"{self._lib}/").replace("/backup/", f"{self.backup}/")
        systemctl = """systemctl() {
            if [ "$1" = kill ]; then kill -s "${2#--signal=}" "$PID"; fi
        }"""
        return subprocess.run(
            ["sh", "-euc", f"{systemctl}\n{here}"],
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PID": str(pid)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
