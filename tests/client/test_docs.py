"""The option table of docs/how_to/python_client.md is complete. tests/docs runs its examples."""

import re
from dataclasses import fields
from pathlib import Path

from penstock.client import ClientConfig

PAGE = (Path(__file__).parents[2] / "docs/how_to/python_client.md").read_text()


def test_the_table_lists_every_option_with_its_default() -> None:
    section = PAGE.partition("## Options")[2]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)
    options = {name: default.strip() for name, default in rows}

    assert {field.name: str(field.default) for field in fields(ClientConfig)} == options
