"""Writes the pages of docs/ that list the options of each daemon."""

from pathlib import Path

from penstock.nsqd.options import NsqdOptions
from penstock.nsqlookupd.options import NsqlookupdOptions
from penstock.options import markdown_page

DOCS = Path(__file__).parents[1] / "docs"

(DOCS / "nsqd_options.md").write_text(markdown_page(NsqdOptions, "nsqd"))
(DOCS / "nsqlookupd_options.md").write_text(markdown_page(NsqlookupdOptions, "nsqlookupd"))
