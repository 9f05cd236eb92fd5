"""Events of a shop: clicks, orders and payments. Pure.

    shop = Shop(per_second=3000, began_ms=now_ms)
    for event in shop.events_until(now_ms):
        publish(event.topic, body_of(event))

Some events are late, as from a phone that was offline. Some are broken: cut off, without a required
field, or with a value of a wrong type. Each event records this, so the expected results can be
computed from the events that were sent.

Every event has a unique id in its body, even if it is broken. So a message that is stored twice,
because a broker was killed before it responded, is recognised as a duplicate.
"""

import heapq
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

__all__ = ["LATE_SECONDS_MAX", "TOPICS", "Event", "Shop", "body_of", "maybe_id_of"]

TOPICS = ("orders", "payments", "clicks")

ORDER_SHARE = 0.2
"""Share of orders among clicks and orders."""
PAID_SHARE = 0.9
LATE_SHARE = 0.02
BROKEN_SHARE = 0.005

LATE_SECONDS_MAX = 45.0
PAYMENT_SECONDS = (0.2, 6.0)

FLAWS = ("cut off", "a field is missing", "a wrong type")
PAGES = ("/", "/penstocks", "/turbines", "/gates", "/basket", "/checkout")
CUSTOMERS = 5000

_ID = re.compile(rb'"(?:order|payment|click)_id":"([a-z]-\d+)"')


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event, and its flaw if it is broken."""

    topic: str
    id: str
    at_ms: int
    customer: str = ""
    page: str = ""
    order_id: str = ""
    cents: int = 0
    is_late: bool = False
    is_closing: bool = False
    """Dated in the future, so that all earlier windows close."""
    flaw: str = ""


class Shop:
    """A source of events, deterministic for a given seed, rate and clock."""

    def __init__(self, *, per_second: float, began_ms: int, seed: int = 2026) -> None:
        # Payments are added to the drawn events.
        self._drawn_per_ms = per_second / (1 + ORDER_SHARE * PAID_SHARE) / 1000
        self._began_ms = began_ms
        self._drawn = 0
        self._random = random.Random(seed)
        self._numbers = dict.fromkeys(TOPICS, 0)
        self._pending_payments: list[tuple[int, str, Event]] = []

    def events_until(self, now_ms: int) -> Iterator[Event]:
        """Events since the last call. The time of a late event is earlier."""
        due = int((now_ms - self._began_ms) * self._drawn_per_ms)
        for _ in range(due - self._drawn):
            is_order = self._random.random() < ORDER_SHARE
            yield from self._order(now_ms) if is_order else self._click(now_ms)
        self._drawn = max(due, self._drawn)
        while self._pending_payments and self._pending_payments[0][0] <= now_ms:
            yield heapq.heappop(self._pending_payments)[2]

    def closing(self, at_ms: int) -> Event:
        """The last order, dated `at_ms`."""
        order_id = self._next_id("orders")
        return Event("orders", order_id, at_ms, "c0", order_id=order_id, is_closing=True)

    def _click(self, now_ms: int) -> Iterator[Event]:
        late_ms = self._late_ms()
        yield Event(
            "clicks",
            self._next_id("clicks"),
            now_ms - late_ms,
            customer=self._customer(),
            page=self._random.choice(PAGES),
            is_late=late_ms > 0,
            flaw=self._flaw(),
        )

    def _order(self, now_ms: int) -> Iterator[Event]:
        """An order; schedules its payment for later."""
        late_ms = self._late_ms()
        order = Event(
            "orders",
            order_id := self._next_id("orders"),
            now_ms - late_ms,
            customer=self._customer(),
            order_id=order_id,
            cents=self._random.randrange(499, 49_999),
            is_late=late_ms > 0,
            flaw=self._flaw(),
        )
        yield order
        if self._random.random() < PAID_SHARE:
            self._pay(order, now_ms)

    def _pay(self, order: Event, now_ms: int) -> None:
        took_ms = int(self._random.uniform(*PAYMENT_SECONDS) * 1000)
        payment = Event(
            "payments",
            self._next_id("payments"),
            order.at_ms + took_ms,
            order_id=order.id,
            cents=order.cents,
            is_late=order.is_late,
            flaw=self._flaw(),
        )
        heapq.heappush(self._pending_payments, (now_ms + took_ms, payment.id, payment))

    def _next_id(self, topic: str) -> str:
        self._numbers[topic] += 1
        return f"{topic[0]}-{self._numbers[topic]}"

    def _customer(self) -> str:
        return f"c{self._random.randrange(1, CUSTOMERS)}"

    def _late_ms(self) -> int:
        is_late = self._random.random() < LATE_SHARE
        return int(self._random.uniform(1, LATE_SECONDS_MAX) * 1000) if is_late else 0

    def _flaw(self) -> str:
        return self._random.choice(FLAWS) if self._random.random() < BROKEN_SHARE else ""


def body_of(event: Event) -> bytes:
    """Body of the message: JSON, unless the event is broken."""
    fields = _fields(event)
    if event.flaw == "a field is missing":
        del fields["ts"]
    if event.flaw == "a wrong type":
        fields["ts"] = "a while ago"
    body = msgspec.json.encode(fields)
    return body[: len(body) * 2 // 3] if event.flaw == "cut off" else body


def maybe_id_of(body: bytes) -> str | None:
    """The id in a body, if it has one."""
    found = _ID.search(body)
    return found[1].decode() if found else None


def _fields(event: Event) -> dict[str, str | float]:
    """The id comes first, so that it remains in a truncated body."""
    moment = datetime.fromtimestamp(event.at_ms / 1000, UTC)
    ts = f"{moment:%Y-%m-%dT%H:%M:%S}.{event.at_ms % 1000:03}Z"
    amount = event.cents / 100
    match event.topic:
        case "orders":
            shown: dict[str, str | float] = {
                "order_id": event.id,
                "customer": event.customer,
                "amount": amount,
            }
        case "payments":
            shown = {"payment_id": event.id, "order_id": event.order_id, "paid": amount}
        case _:
            shown = {"click_id": event.id, "customer": event.customer, "page": event.page}
    return {**shown, "ts": ts}
