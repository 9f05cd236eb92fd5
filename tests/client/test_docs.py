"""What docs/client.md shows works, and its table is the options there are."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from penstock.client import ClientConfig
from penstock.testing.nsqd import run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.wire import lookup_v1

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()

# An example, and what it prints, if that is shown.
EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)


def test_the_examples_run_and_print_what_they_are_said_to() -> None:
    with run_nsqd() as nsqd, run_nsqlookupd() as lookupd:
        node = lookupd.node("127.0.0.1", tcp_port=int(nsqd.tcp_address.rpartition(":")[2]))
        node.call(lookup_v1.register("orders"))
        addresses = {
            "127.0.0.1:4150": nsqd.tcp_address,
            "127.0.0.1:4161": lookupd.http_address,
        }
        examples = EXAMPLE.findall(PAGE)
        assert 5 == len(examples)
        for source, expected in examples:
            printed = run_example(source, addresses)
            assert printed == (expected or printed), source


def run_example(source: str, addresses: dict[str, str]) -> str:
    for shown, real in addresses.items():
        source = source.replace(shown, real)
    done = subprocess.run(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, check=True, timeout=30
    )
    return done.stdout


def test_the_table_lists_every_option_with_its_default() -> None:
    section = PAGE.partition("## Options")[2]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)
    options = {name: default.strip() for name, default in rows}

    assert {field.name: str(field.default) for field in fields(ClientConfig)} == options
