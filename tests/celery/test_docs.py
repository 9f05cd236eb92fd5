"""The samples of docs/how_to/celery.md work."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from penstock.testing.nsqd import run_nsqd
from penstock.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "celery_app"
PAGE = (ROOT / "docs/how_to/celery.md").read_text()


def test_the_page_shows_the_example() -> None:
    [shown] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    assert (EXAMPLE / "tasks.py").read_text() == shown


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    worker_command, commands = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    log = tmp_path / "log"
    with run_nsqd() as nsqd, log.open("wb") as output:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "BROKER_URL": f"nsq://{nsqd.tcp_address}"}
        worker = subprocess.Popen(
            worker_command.split(), cwd=EXAMPLE, env=environment, stdout=output, stderr=output
        )
        try:
            wait_until(lambda: " ready." in log.read_text(), "the worker", seconds=120)
            answers = subprocess.run(
                ["sh", "-e"],
                input=commands,
                cwd=EXAMPLE,
                env=environment,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
            )
            assert "pong" in answers.stdout
            for words in ("hello, you\n", "order 7 is paid", "hello, you, later"):
                wait_until(partial(_contains, log, words), words)
        finally:
            worker.terminate()
            worker.wait(120)


def _contains(file: Path, words: str) -> bool:
    return words in file.read_text()
