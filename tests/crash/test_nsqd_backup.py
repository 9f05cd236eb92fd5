"""A data path that is copied in one moment, while nsqd works on it, is a whole one."""

import shutil
import signal
import threading
from pathlib import Path

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until
from penstock.wire import commands

pytestmark = pytest.mark.crash


class Load:
    """Publishes one message after the other; `acknowledged` is how many got their OK."""

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


def test_nsqd_starts_on_a_copy_that_was_made_while_it_stood_still(tmp_path: Path) -> None:
    """As it does on a snapshot of the file system, which is made in one moment too."""
    with run_nsqd("--max-bytes-per-file=16384") as nsqd:
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=billing")
        load = Load(nsqd)
        wait_until(lambda: load.acknowledged >= 1000, "messages")
        nsqd.send_signal(signal.SIGSTOP)
        acknowledged = load.acknowledged
        shutil.copytree(nsqd.data_path, tmp_path / "copy")
        nsqd.send_signal(signal.SIGCONT)
        wait_until(lambda: load.acknowledged > acknowledged + 100, "nsqd to go on")
        load.stop()

    with run_nsqd(data_path=tmp_path / "copy") as copy:
        assert acknowledged <= copy.stats("orders", "billing")["depth"]
        consumer = copy.consumer("orders", "billing", rdy=2500)
        got = {message.body for message in consumer.messages(acknowledged)}
    assert {b"%d" % number for number in range(acknowledged)} == got
