"""What happens in a shop: visitors click, some order, most of those pay. Pure.

    shop = Shop(per_second=3000, began_ms=now_ms)
    for event in shop.events_until(now_ms):
        publish(event.topic, body_of(event))

Some events are late: a phone was offline, and tells what happened some time ago. Some are broken:
cut off, without a field that has to be there, or with a word where a number belongs. The shop knows
which, and whoever keeps an account of what was sent can say what has to come of it.

Every event has an id of its own, which is in its body, broken or not: what is stored twice, because
a broker was killed before it could answer, can be told from what happened twice.
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
"""Of clicks and orders; the rest are clicks."""
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
    """Something that happened, and what is wrong with its telling, if anything is."""

    topic: str
    id: str
    at_ms: int
    customer: str = ""
    page: str = ""
    order_id: str = ""
    cents: int = 0
    is_late: bool = False
    is_closing: bool = False
    """It is dated ahead, so that all windows of time before it come to an end."""
    flaw: str = ""


class Shop:
    """A source of events that is the same for the same seed, rate and times."""

    def __init__(self, *, per_second: float, began_ms: int, seed: int = 2026) -> None:
        # Payments come on top of what is drawn.
        self._drawn_per_ms = per_second / (1 + ORDER_SHARE * PAID_SHARE) / 1000
        self._began_ms = began_ms
        self._drawn = 0
        self._random = random.Random(seed)
        self._numbers = dict.fromkeys(TOPICS, 0)
        self._to_be_told: list[tuple[int, str, Event]] = []

    def events_until(self, now_ms: int) -> Iterator[Event]:
        """All that is told since the last call. What is late was told late, and happened before."""
        due = int((now_ms - self._began_ms) * self._drawn_per_ms)
        for _ in range(due - self._drawn):
            is_order = self._random.random() < ORDER_SHARE
            yield from self._order(now_ms) if is_order else self._click(now_ms)
        self._drawn = max(due, self._drawn)
        while self._to_be_told and self._to_be_told[0][0] <= now_ms:
            yield heapq.heappop(self._to_be_told)[2]

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
        """And its payment, which is told after as long as it took to pay."""
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
        heapq.heappush(self._to_be_told, (now_ms + took_ms, payment.id, payment))

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
    """As it is published: JSON, unless it is broken."""
    fields = _fields(event)
    if event.flaw == "a field is missing":
        del fields["ts"]
    if event.flaw == "a wrong type":
        fields["ts"] = "a while ago"
    body = msgspec.json.encode(fields)
    return body[: len(body) * 2 // 3] if event.flaw == "cut off" else body


def maybe_id_of(body: bytes) -> str | None:
    """The id of the event whose body this is."""
    found = _ID.search(body)
    return found[1].decode() if found else None


def _fields(event: Event) -> dict[str, str | float]:
    """The id comes first, so that it is there whatever is cut off."""
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
