"""Takes the pictures in docs/images with chromium: nsqadmin with the traffic of a small shop, and
the report of `make demo`.

    make pictures                              # pictures of the docs
    make pictures ARGS="FOLDER --every"        # all pages, light and dark, wide and narrow

It takes a few minutes, because charts need a history.
"""

import argparse
import asyncio
import json
import math
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from penstock.admin_api.nsqd_api import NsqdApi
from penstock.client import ClientConfig, Consumer, Message, Producer
from penstock.net.http_client.client import HttpClient
from penstock.testing.nsqadmin import NsqadminProcess, run_nsqadmin
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd

ROOT = Path(__file__).parents[1]
DOCS_IMAGES = ROOT / "docs" / "images"
NODES = 3
ARCHIVE = "topic=orders&channel=spark-archive"
WIDE, NARROW = (1280, 860), (390, 844)
UPPER_PART = (1100, 940)  # the upper part of the report


@dataclass(frozen=True)
class Reader:
    """The consumers of one channel, and their speed."""

    channel: str
    consumers: int
    per_second: float  # messages per consumer; 0: the consumer never finishes a message
    fails: float = 0.0


TOPICS = {  # messages per second, and consumers
    "orders": (40, [Reader("billing", 2, 40), Reader("fulfilment", 3, 35, fails=0.03)]),
    "payments": (25, [Reader("ledger", 2, 40), Reader("fraud", 2, 18, fails=0.08)]),
    "clicks": (120, [Reader("sessions", 4, 60), Reader("heatmap", 3, 55)]),
    "emails": (12, [Reader("smtp", 2, 15)]),
    "inventory": (25, [Reader("search-index", 2, 30)]),
    "shipments": (3, [Reader("tracking", 1, 20), Reader("carrier-api", 1, 0)]),
    "page-views.eu": (60, [Reader("sessions", 3, 35)]),
    "refunds": (1, []),
}
PICTURES = {  # path, theme and size
    "nsqadmin": ("/", "light", WIDE),
    "nsqadmin-channel": ("/topics/payments/fraud", "dark", WIDE),
    "nsqadmin-messages": ("/messages/orders", "light", WIDE),
    "nsqadmin-phone": ("/topics/orders", "dark", NARROW),
}
PAGES = (
    *("/", "/topics/orders", "/topics/orders/fulfilment", "/topics/refunds", "/consumers"),
    *("/nodes", "/nodes/{node}", "/counter", "/lookup", "/messages/orders"),
    *("/messages/shipments/carrier-api?state=inflight", "/messages/emails/smtp?state=deferred"),
    *("/actions/delete?topic=orders", "/topics/no-such-topic"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS_IMAGES)
    parser.add_argument(
        "--every", action="store_true", help="all pages of nsqadmin, in all themes and sizes"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=200,
        help="seconds of traffic before the first picture [default: 200]",
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with shop() as (nsqds, nsqadmin), chromium() as browser:
        time.sleep(args.seconds)
        wanted = every_page(nsqds[0].http_address) if args.every else PICTURES
        for name, (path, scheme, size) in wanted.items():
            take(browser, nsqadmin.url + path, args.folder / f"{name}.png", scheme, size)
            print(args.folder / f"{name}.png")
    if not args.every:
        take_report(args.folder / "report.png")
        print(args.folder / "report.png")


def take_report(to: Path) -> None:
    """Take a picture of the report of `make demo`."""
    report = ROOT / "build" / "demo" / "report.html"
    report.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "examples.shop.demo"], cwd=ROOT, check=True)
    with chromium() as browser:
        take(browser, report.as_uri(), to, "light", UPPER_PART)


def every_page(node: str) -> dict[str, tuple[str, str, tuple[int, int]]]:
    """Each page, light and dark, wide and narrow."""
    pages = [path.replace("{node}", node) for path in PAGES]
    return {
        f"{number:02}-{scheme}-{width}": (path, scheme, (width, height))
        for number, path in enumerate(pages)
        for scheme in ("light", "dark")
        for width, height in (WIDE, NARROW)
    }


def take(browser: Browser, url: str, to: Path, scheme: str, size: tuple[int, int]) -> None:
    """Take one picture after the charts are drawn."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=2 if width < 500 else 1,
    )
    page = context.new_page()
    page.goto(url)
    prepare_page(page)
    page.screenshot(path=to)
    context.close()


def prepare_page(page: Page) -> None:
    """Open the first message, if there is one, and wait for the page to refresh."""
    first = page.locator(".messages summary").first
    if first.count():
        first.click()
    if page.locator("figure.chart").count():
        page.locator("figure.chart canvas").first.wait_for()
    page.wait_for_timeout(1500)


# The shop ----------------------------------------------------------------------------------------


@contextmanager
def shop() -> Iterator[tuple[list[NsqdProcess], NsqadminProcess]]:
    """Run a cluster with traffic."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(run_nsqlookupd())
        flags = (
            "--broadcast-address=127.0.0.1",
            "--retention-time=1h",
            "--e2e-processing-latency-percentile=0.5,0.99",
            "--e2e-processing-latency-window-time=1m",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
        )
        nsqds = [
            stack.enter_context(run_nsqd(*flags, f"--node-id={number}"))
            for number in range(1, NODES + 1)
        ]
        nsqadmin = stack.enter_context(
            run_nsqadmin(f"--lookupd-http-address={lookupd.http_address}", "--sample-interval=2s")
        )
        for nsqd in nsqds:
            nsqd.post("/topic/create?topic=orders")
            # A new topic gets the channels that nsqlookupd knows for it. So the channel may exist
            # already on all nodes but the first, and is not created in commit mode.
            nsqd.post(f"/channel/create?{ARCHIVE}")
            nsqd.post(f"/channel/mode?{ARCHIVE}&mode=commit")
        stack.enter_context(traffic(nsqds))
        yield nsqds, nsqadmin


@contextmanager
def traffic(nsqds: list[NsqdProcess]) -> Iterator[None]:
    """Run producers and consumers in a thread for the duration of the block."""
    with asyncio.Runner() as runner:
        running = runner.get_loop().create_task(run_clients(nsqds))
        thread = threading.Thread(target=_run, args=(runner, running))
        thread.start()
        try:
            yield
        finally:
            runner.get_loop().call_soon_threadsafe(running.cancel)
            thread.join()


def _run(runner: asyncio.Runner, running: "asyncio.Task[None]") -> None:
    async def until_cancelled() -> None:
        with suppress(asyncio.CancelledError):
            await running

    runner.run(until_cancelled())


async def run_clients(nsqds: list[NsqdProcess]) -> None:
    """Run all producers and consumers."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    async with asyncio.TaskGroup() as group:
        group.create_task(archive([nsqd.http_address for nsqd in nsqds]))
        for topic, (rate, readers) in TOPICS.items():
            group.create_task(produce(addresses, topic, rate))
            for reader in readers:
                for number in range(1, reader.consumers + 1):
                    group.create_task(consume(addresses, topic, reader, number))


async def produce(addresses: list[str], topic: str, rate: float) -> None:
    """The rate follows a sine wave with a period of two minutes, like day and night."""
    numbers, phase = count(10_000), random.uniform(0, math.tau)
    async with Producer(addresses) as producer:
        for tick in count():
            wave = 1 + 0.4 * math.sin(tick / 190 + phase) + random.uniform(-0.15, 0.15)
            bodies = [body(topic, next(numbers)) for _ in range(max(round(rate * wave / 10), 1))]
            if rate >= 10 or tick % round(10 / rate) == 0:
                await producer.publish_many(topic, bodies)
            if topic == "emails" and tick % 20 == 0:
                await producer.publish(topic, body("reminder", next(numbers)), defer=1800)
            await asyncio.sleep(0.1)


async def consume(addresses: list[str], topic: str, reader: Reader, number: int) -> None:
    """Consume at the speed of the reader; a stuck one never finishes a message."""
    name = f"{reader.channel}-{number}"
    config = ClientConfig(
        client_id=name, hostname=f"{name}.shop", max_in_flight=8, default_requeue_delay=5
    )
    async with Consumer(topic, reader.channel, nsqd=addresses, config=config) as consumer:
        if not reader.per_second:
            await asyncio.Event().wait()
        async for message in consumer:
            await asyncio.sleep(random.expovariate(reader.per_second))
            answer(message, reader)


async def archive(addresses: list[str]) -> None:
    """Commit the end of the log periodically, as `penstock archive` does."""
    http = HttpClient(connect_timeout_seconds=2, request_timeout_seconds=5)
    while True:
        for address in addresses:
            log = await NsqdApi(http, address).topic_log("orders")
            url = f"http://{address}/channel/commit?{ARCHIVE}&seq={log.next_seq}"
            await http.call("POST", url)
        await asyncio.sleep(5)


def answer(message: Message, reader: Reader) -> None:
    if random.random() < reader.fails:
        message.requeue(20)
    else:
        message.finish()


def body(topic: str, number: int) -> bytes:
    """A message body of a shop."""
    contents = {
        "orders": {
            "order": number,
            "customer": f"c-{number * 7919 % 90_000}",
            "items": [{"sku": f"TEA-{number % 40:03}", "quantity": 1 + number % 3}],
            "total": {"amount": round(4.9 + number % 900 / 10, 2), "currency": "EUR"},
            "placed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        "payments": {"order": number, "method": ("card", "invoice")[number % 2], "paid": True},
        "reminder": {"to": f"c-{number}@example.org", "template": "forgotten-basket"},
    }
    return json.dumps(contents.get(topic, {"id": number, "topic": topic})).encode()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


if __name__ == "__main__":
    main()
