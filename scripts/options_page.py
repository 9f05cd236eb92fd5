"""Writes the option pages of docs/reference."""

from importlib import import_module
from pathlib import Path

from penstock.common.options import markdown_page, markdown_tables
from penstock.nsqadmin.options import NsqadminOptions
from penstock.nsqd.options import NsqdOptions
from penstock.nsqlookupd.options import NsqlookupdOptions

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
TOOLS = ("nsq_tail", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq")

(REFERENCE / "nsqd_options.md").write_text(markdown_page(NsqdOptions, "nsqd"))
(REFERENCE / "nsqadmin_options.md").write_text(markdown_page(NsqadminOptions, "nsqadmin"))
(REFERENCE / "nsqlookupd_options.md").write_text(markdown_page(NsqlookupdOptions, "nsqlookupd"))

commands = [import_module(f"penstock.cli.{tool}").COMMAND for tool in TOOLS]
tables = markdown_tables({command.name: command.options for command in commands})
(REFERENCE / "tools_options.md").write_text(tables)
