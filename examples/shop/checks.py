"""Checks that every acknowledged event, and no other, has arrived in every result. Pure.

Events are compared by id; the counts are for display only. Duplicates count once, and their number
is shown.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from examples.shop.events import TOPICS
from examples.shop.ledger import Ledger, Revenue
from examples.shop.results import PipelineResults

__all__ = ["Check", "checks", "notes"]

EXAMPLES = 3


class Check(NamedTuple):
    """A line of the summary; `fault` describes the difference, if any."""

    what: str
    expected: str
    found: str
    fault: str = ""


def checks(ledger: Ledger, found: PipelineResults) -> list[Check]:
    """All checks, in the order of processing."""
    expected = ledger.revenue()
    return [
        *(
            _same_ids(f"{each} archived", ledger.valid(each), found.archived[each])
            for each in TOPICS
        ),
        *(
            _same_ids(
                f"broken {each} rejected by the archive", ledger.broken(each), found.rejected[each]
            )
            for each in TOPICS
        ),
        _same_ids(
            "broken orders rejected by the stream",
            ledger.broken("orders"),
            found.rejected_by_stream,
        ),
        _same_windows("windows with the right revenue", expected, found.windows),
        _same("orders in these windows", _orders(expected), _orders(found.windows)),
        _same("revenue", _amount(expected), _amount(found.windows)),
        _same_ids("orders joined with their payments", ledger.paid(), found.paid),
        _same_ids("clicks in files", ledger.valid("clicks"), found.clicks),
        _same_ids("orders replayed", ledger.valid("orders"), found.replayed),
        _same(
            "messages replayed",
            f"{found.archived['orders'].total():,}",
            f"{found.replayed.total():,}",
        ),
    ]


def notes(ledger: Ledger, found: PipelineResults) -> list[str]:
    """Explanations of the numbers."""
    stored = [*found.archived.values(), *found.rejected.values()]
    twice = sum(ids.total() - len(ids) for ids in stored)
    return [
        f"{ledger.late:,} events arrived up to 45 s late and count at their event time",
        f"{twice:,} are stored twice, with the same id: published again after the kill",
        "the last order is in no window: it is dated an hour ahead to close the other windows",
    ]


def _same_ids(what: str, expected: Collection[str], found: Collection[str]) -> Check:
    missing, unknown = set(expected) - set(found), set(found) - set(expected)
    faults = [
        f"{len(ids):,} {word}, such as {', '.join(sorted(ids)[:EXAMPLES])}"
        for word, ids in (("missing", missing), ("unknown", unknown))
        if ids
    ]
    return Check(what, f"{len(expected):,}", f"{len(found):,}", "; ".join(faults))


def _same_windows(
    what: str, expected: Mapping[int, Revenue], found: Mapping[int, Revenue]
) -> Check:
    right = sum(found.get(start) == revenue for start, revenue in expected.items())
    unknown = len(found.keys() - expected.keys())
    wrong = len(expected) - right
    fault = f"{wrong} wrong or missing, {unknown} unknown" if wrong or unknown else ""
    return Check(what, f"{len(expected):,}", f"{right:,}", fault)


def _same(what: str, expected: str, found: str) -> Check:
    return Check(what, expected, found, "" if expected == found else "different")


def _orders(windows: Mapping[int, Revenue]) -> str:
    return f"{sum(each.orders for each in windows.values()):,}"


def _amount(windows: Mapping[int, Revenue]) -> str:
    return f"{sum(each.cents for each in windows.values()) / 100:,.2f}"
