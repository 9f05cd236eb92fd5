"""Whether all that was acknowledged has arrived everywhere, and nothing else. Pure.

Compared by id, event by event; the numbers are only what is shown of it. Whatever is there twice
counts once, but is not passed over: it is told how many there are.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from examples.shop.events import TOPICS
from examples.shop.found import Found
from examples.shop.ledger import Ledger, Revenue

__all__ = ["Check", "checks", "remarks"]

EXAMPLES = 3


class Check(NamedTuple):
    """A line of the summary; `fault` says what is wrong, if something is."""

    what: str
    expected: str
    found: str
    fault: str = ""


def checks(ledger: Ledger, found: Found) -> list[Check]:
    """All of them, in the order in which an event comes past."""
    expected = ledger.revenue()
    return [
        *(
            _same_ids(f"{each} archived", ledger.sound(each), found.archived[each])
            for each in TOPICS
        ),
        *(
            _same_ids(f"broken {each} kept aside", ledger.broken(each), found.rejected[each])
            for each in TOPICS
        ),
        _same_ids("broken orders rejected by the stream", ledger.broken("orders"), found.set_aside),
        _same_windows("windows with the right revenue", expected, found.windows),
        _same("orders in these windows", _orders(expected), _orders(found.windows)),
        _same("revenue", _amount(expected), _amount(found.windows)),
        _same_ids("orders joined with their payments", ledger.paid(), found.paid),
        _same_ids("clicks in files", ledger.sound("clicks"), found.clicks),
        _same_ids("orders replayed", ledger.sound("orders"), found.replayed),
        _same(
            "the same, counted as messages",
            f"{found.archived['orders'].total():,}",
            f"{found.replayed.total():,}",
        ),
    ]


def remarks(ledger: Ledger, found: Found) -> list[str]:
    """What else there is to know of these numbers."""
    stored = [*found.archived.values(), *found.rejected.values()]
    twice = sum(ids.total() - len(ids) for ids in stored)
    return [
        f"{ledger.late:,} events were told up to 45 s late, and count for when they happened",
        f"{twice:,} are stored twice, and known by their ids: published again after the kill",
        "the order that closes the shop is in no window: it is dated ahead, to end those before it",
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
    return Check(what, expected, found, "" if expected == found else "they differ")


def _orders(windows: Mapping[int, Revenue]) -> str:
    return f"{sum(each.orders for each in windows.values()):,}"


def _amount(windows: Mapping[int, Revenue]) -> str:
    return f"{sum(each.cents for each in windows.values()) / 100:,.2f}"
