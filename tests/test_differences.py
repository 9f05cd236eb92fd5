"""Every row of docs/background/differences.md names existing tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_difference_names_existing_tests() -> None:
    page = (ROOT / "docs/background/differences.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "shown by" not in line]
    shown_by = [re.findall(r"`(tests/[^`]+)`", row.rsplit("|", 2)[1]) for row in rows]

    assert rows
    assert all(shown_by)
    assert [] == [test for tests in shown_by for test in tests if not (ROOT / test).exists()]
