"""What the README and the docs say is so."""

import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

MARKDOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def example(language: str, containing: str) -> str:
    """The one code block of the README in this language that contains this text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (block,) = (block for block in blocks if containing in block)
    return str(block)


def on_ports_of(nsqd: NsqdProcess, text: str) -> str:
    return text.replace("127.0.0.1:4150", nsqd.tcp_address).replace(
        "127.0.0.1:4151", nsqd.http_address
    )


def run_curl(command: str) -> None:
    """Does what curl would, which is not on every machine."""
    curl, data_flag, data, url = shlex.split(command)
    assert ["curl", "-d"] == [curl, data_flag]
    with urllib.request.urlopen(url, data.encode(), timeout=10) as answer:
        assert b"OK" == answer.read()


@pytest.mark.interop
def test_what_curl_publishes_the_consumer_prints() -> None:
    with run_nsqd() as nsqd:
        run_curl(on_ports_of(nsqd, example("sh", "curl")))
        consumer = subprocess.Popen(
            [sys.executable, "-u", "-c", on_ports_of(nsqd, example("python", "nsq.Reader"))],
            stdout=subprocess.PIPE,
            text=True,
        )
        with consumer:
            assert consumer.stdout is not None
            printed = consumer.stdout.readline()
            consumer.terminate()

    assert "hello\n" == printed


def test_what_our_producer_publishes_our_consumer_prints() -> None:
    with run_nsqd() as nsqd:
        script = on_ports_of(nsqd, example("python", "penstock.client"))
        ran = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
        )

    assert "one\n" == ran.stdout


@pytest.mark.parametrize(
    "page", [*MARKDOWN, *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", page.read_text())
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", prose)
    local = [target for target in targets if "://" not in target]

    assert [] == [target for target in local if not (page.parent / target).exists()]


def test_every_difference_is_shown_by_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "differences.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "shown by" not in line]
    shown_by = [re.findall(r"`(tests/[^`]+)`", row.rsplit("|", 2)[1]) for row in rows]

    assert rows
    assert all(shown_by)
    assert [] == [test for tests in shown_by for test in tests if not (ROOT / test).exists()]
