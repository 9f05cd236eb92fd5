"""A finding is one line that says where and what."""

import pytest

from penstock.storage.issue import Finding


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (Finding("f", "is odd", is_damage=True), "f: is odd"),
        (
            Finding("f", "is odd", is_damage=True, first_byte=10, end_byte=20),
            "f: is odd (bytes 10 to 19)",
        ),
        (
            Finding("f", "is odd", True, 10, 20, 5, 8),
            "f: is odd (bytes 10 to 19, messages 5 to 7)",
        ),
        (
            Finding("f", "is odd", is_damage=True, first_seq=5),
            "f: is odd (messages 5 and on)",
        ),
    ],
)
def test_it_says_what_it_knows(finding: Finding, line: str) -> None:
    assert line == str(finding)
