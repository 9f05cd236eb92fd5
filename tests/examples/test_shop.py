"""The shop of the demo: its events, its ledger, and the checks."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from examples.shop.checks import checks, notes
from examples.shop.events import LATE_SECONDS_MAX, TOPICS, Event, Shop, body_of, maybe_id_of
from examples.shop.ledger import Ledger, Revenue, encode_lines, read_ledger
from examples.shop.results import PipelineResults

BEGAN_MS = 1_794_800_000_000
SECONDS = 20


def shop_events(per_second: float = 500) -> list[Event]:
    shop = Shop(per_second=per_second, began_ms=BEGAN_MS)
    times_ms = range(BEGAN_MS, BEGAN_MS + SECONDS * 1000, 50)
    return [event for now_ms in times_ms for event in shop.events_until(now_ms)]


def faultless(ledger: Ledger) -> PipelineResults:
    """The result of a correct pipeline; some messages are stored twice."""
    archived = {topic: Counter(ledger.valid(topic)) for topic in TOPICS}
    archived["orders"].update(["o-1"])
    return PipelineResults(
        archived=archived,
        rejected={topic: Counter(ledger.broken(topic)) for topic in TOPICS},
        windows=ledger.revenue(),
        paid=Counter(ledger.paid()),
        rejected_by_stream=Counter(ledger.broken("orders")),
        clicks=Counter(ledger.valid("clicks")),
        replayed=archived["orders"],
    )


class TestEvents:
    def test_have_the_requested_rate(self) -> None:
        # The first orders have no payment yet.
        assert SECONDS * 500 * 0.95 < len(shop_events()) < SECONDS * 500

    def test_are_deterministic(self) -> None:
        assert shop_events() == shop_events()

    def test_have_unique_ids_in_their_bodies_even_if_broken(self) -> None:
        events = shop_events()

        assert len(events) == len({event.id for event in events})
        assert [event.id for event in events] == [maybe_id_of(body_of(event)) for event in events]

    def test_are_valid_json_unless_broken(self) -> None:
        for event in shop_events():
            if not event.flaw:
                fields = msgspec.json.decode(body_of(event))
                assert {"orders": "amount", "payments": "paid", "clicks": "page"}[
                    event.topic
                ] in fields
                assert fields["ts"].endswith("Z")

    def test_some_are_broken_and_some_are_late(self) -> None:
        events = shop_events(per_second=2000)
        flaws = {event.flaw for event in events if event.flaw}

        assert {"cut off", "a field is missing", "a wrong type"} == flaws
        assert 0.01 < sum(event.is_late for event in events) / len(events) < 0.04
        assert all(event.at_ms >= BEGAN_MS - LATE_SECONDS_MAX * 1000 for event in events)


class TestLedger:
    def test_round_trips_through_its_file(self, tmp_path: Path) -> None:
        events = shop_events()
        (tmp_path / "ledger.jsonl").write_bytes(encode_lines(events))

        assert Ledger(events) == read_ledger(tmp_path / "ledger.jsonl")

    def test_sums_revenue_by_window_without_broken_and_closing_events(self) -> None:
        orders = [
            Event("orders", "o-1", 10_000, order_id="o-1", cents=100),
            Event("orders", "o-2", 19_999, order_id="o-2", cents=250),
            Event("orders", "o-3", 20_000, order_id="o-3", cents=5),
            Event("orders", "o-4", 20_001, order_id="o-4", cents=7, flaw="cut off"),
            Event("orders", "o-5", 99_000, order_id="o-5", is_closing=True),
        ]

        assert {10_000: Revenue(2, 350), 20_000: Revenue(1, 5)} == Ledger(orders).revenue()

    def test_lists_orders_paid_in_time(self) -> None:
        orders = [Event("orders", f"o-{n}", 1000, order_id=f"o-{n}") for n in range(4)]
        payments = [
            Event("payments", "p-0", 61_000, order_id="o-0"),
            Event("payments", "p-1", 61_001, order_id="o-1"),
            Event("payments", "p-2", 1000, order_id="o-2", flaw="cut off"),
            Event("payments", "p-3", 999, order_id="o-3"),
        ]

        assert {"o-0"} == Ledger(orders + payments).paid()


class TestChecks:
    def test_pass_if_all_events_arrived_and_count_duplicates(self) -> None:
        ledger = Ledger(shop_events())
        found = faultless(ledger)

        assert [] == [check for check in checks(ledger, found) if check.fault]
        assert any("1 are stored twice" in remark for remark in notes(ledger, found))

    @pytest.mark.parametrize(
        ("is_lost", "what"),
        [
            (lambda e: e.topic == "clicks" and not e.flaw, "clicks archived"),
            (lambda e: e.topic == "payments" and e.flaw, "broken payments rejected by the archive"),
            (lambda e: e.topic == "orders" and not e.flaw, "windows with the right revenue"),
            (lambda e: e.topic == "orders" and not e.flaw, "revenue"),
            (lambda e: e.topic == "orders" and not e.flaw, "orders replayed"),
        ],
    )
    def test_fail_if_a_single_event_is_missing(
        self, is_lost: Callable[[Event], bool], what: str
    ) -> None:
        events = shop_events()
        lost = next(event for event in events if is_lost(event))
        damaged = Ledger([event for event in events if event != lost])

        results = checks(damaged, faultless(Ledger(events)))
        assert any(check.what.startswith(what) and check.fault for check in results)

    def test_compare_ids_not_counts(self) -> None:
        ledger = Ledger(shop_events())
        found = faultless(ledger)
        paid = Counter({("o-999999" if each == "o-2" else each): 1 for each in found.paid})

        (fault,) = (
            check.fault for check in checks(ledger, replace(found, paid=paid)) if check.fault
        )
        assert "1 missing, such as o-2; 1 unknown, such as o-999999" == fault

    def test_fail_if_an_order_counts_twice_in_a_window(self) -> None:
        ledger = Ledger(shop_events())
        found = faultless(ledger)
        start, revenue = next(iter(found.windows.items()))
        windows = {**found.windows, start: Revenue(revenue.orders + 1, revenue.cents)}

        faults = [
            each.what for each in checks(ledger, replace(found, windows=windows)) if each.fault
        ]
        assert ["windows with the right revenue", "orders in these windows"] == faults
