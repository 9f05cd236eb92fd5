"""Options of nsqadmin."""

from pathlib import Path

import pytest

from penstock.common.options import markdown_page
from penstock.nsqadmin.options import NsqadminOptions, normalized


def test_the_options_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs/reference/nsqadmin_options.md"

    assert markdown_page(NsqadminOptions, "nsqadmin") == page.read_text()


@pytest.mark.parametrize(
    ("given", "path"),
    [("", "/"), ("/", "/"), ("nsq", "/nsq"), ("/nsq/", "/nsq"), ("//a//b/", "/a/b")],
)
def test_a_base_path_begins_with_one_slash_and_ends_without(given: str, path: str) -> None:
    assert path == normalized(NsqadminOptions(base_path=given)).base_path
