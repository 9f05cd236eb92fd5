"""nsqadmin in a real browser: the daily tasks of an operator."""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import quote_plus

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.browser.conftest import ERROR_PAGE_MESSAGES, OFFLINE_MESSAGES, watched
from tests.nsqadmin.conftest import Cluster

from penstock.protocol import commands
from penstock.testing.nsqadmin import run_nsqadmin
from penstock.testing.nsqd import run_nsqd
from penstock.testing.waiting import wait_until

READABILITY = Path(__file__).with_name("readability.js").read_text()


def test_a_topic_is_created(page: Page, topic: str) -> None:
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Topic name").fill(topic)
    page.get_by_label("Channel name").fill("c")
    page.get_by_role("button", name="Create").click()

    expect(page.get_by_role("status").first).to_have_text(f"Channel c of topic {topic} created.")
    expect(page.get_by_role("heading", level=1)).to_contain_text(topic)
    page.goto("/lookup")
    expect(page.get_by_role("row").filter(has_text=topic)).to_contain_text("c")


def test_charts_refresh_automatically(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    cluster.create_channel(topic, "c")
    page.goto(f"/topics/{topic}")
    chart = page.locator("figure[data-chart=waiting]")
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart).to_have_attribute("data-latest", re.compile("^1,"))

    cluster.publish(topic, *[b"x"] * 41)

    expect(chart).to_have_attribute("data-latest", re.compile("^42,"))
    expect(page.locator("#stats")).to_contain_text("42")
    expect(chart.locator(".u-legend")).to_contain_text("42")
    page.get_by_role("button", name="1 hour").click()
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")


def test_the_history_is_browsed_and_bodies_are_escaped(
    page: Page, cluster: Cluster, topic: str
) -> None:
    evil = b'{"html":"<img src=x onerror=alert(1)>","n":1}'
    cluster.publish(topic, *(b"m%d" % number for number in range(60)), evil)
    page.goto(f"/topics/{topic}")
    page.get_by_role("link", name="Messages").click()

    expect(page.locator(".messages li")).to_have_count(50)
    page.locator(".messages summary").first.click()
    expect(page.locator(".messages pre").first).to_contain_text('"<img src=x onerror=alert(1)>"')
    expect(page.locator(".messages img")).to_have_count(0)

    page.get_by_role("link", name="Older").first.click()
    expect(page.locator(".messages .preview").last).to_have_text("m0")
    page.get_by_label("Search in bodies").fill("M17")
    page.locator("#main").get_by_role("button", name="Search").click()
    expect(page.locator(".messages .preview")).to_have_text(["m17"])


def test_a_channel_is_paused_emptied_and_deleted_after_confirmation(
    page: Page, cluster: Cluster, topic: str
) -> None:
    nsqd = cluster.nsqds[0]
    cluster.publish(topic, b"1", b"2", b"3")
    cluster.create_channel(topic, "c")
    page.goto(f"/topics/{topic}/c")
    dialog = page.locator("#dialog")

    page.get_by_role("button", name="Pause").click()
    expect(dialog).to_contain_text("0 consumers will receive no messages")
    dialog.get_by_role("button", name="Pause channel").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
    assert nsqd.stats(topic, "c")["paused"]
    page.get_by_role("button", name="Unpause").click()
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("paused")

    page.get_by_role("button", name="Empty").click()
    expect(dialog).to_contain_text("3 queued messages, 0 in flight and 0 deferred will be deleted")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert 3 == nsqd.stats(topic, "c")["depth"]
    page.get_by_role("button", name="Empty").click()
    dialog.get_by_role("button", name="Empty channel").click()
    expect(page.locator(".notice")).to_contain_text("emptied")
    assert 0 == nsqd.stats(topic, "c")["depth"]

    page.get_by_role("button", name="Delete").click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete channel").click()
    expect(page.locator(".notice")).to_have_text(f"Channel c of topic {topic} deleted.")
    assert [] == nsqd.stats(topic)["channels"]


def test_a_topic_is_paused_emptied_tombstoned_and_deleted(
    page: Page, cluster: Cluster, topic: str
) -> None:
    first, second = cluster.nsqds
    for node in (0, 1):
        cluster.publish(topic, b"1", b"2", node=node)
    page.goto(f"/topics/{topic}")
    dialog = page.locator("#dialog")

    page.get_by_role("button", name="Pause").click()
    dialog.get_by_role("button", name="Pause topic").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
    page.get_by_role("button", name="Unpause").click()
    expect(page.locator(".notice")).to_have_text(f"Topic {topic} unpaused.")

    page.get_by_role("button", name="Empty").click()
    expect(dialog).to_contain_text("4 messages in the topic itself, on 2 nodes, will be deleted")
    dialog.get_by_role("button", name="Empty topic").click()
    expect(page.locator(".notice")).to_contain_text("emptied")
    assert [0, 0] == [nsqd.stats(topic)["depth"] for nsqd in cluster.nsqds]

    page.get_by_label("Retention time").fill("2h")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#main")).to_contain_text("are kept for 2h")

    row = page.get_by_role("row").filter(has_text=second.http_address)
    row.get_by_role("button", name="Tombstone").click()
    expect(dialog).to_contain_text("Other nodes keep the topic")
    dialog.get_by_role("button", name="Tombstone").click()
    expect(page.locator(".notice")).to_contain_text(f"tombstoned on {second.http_address}")

    page.goto(f"/topics/{topic}")
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete topic").click()
    page.wait_for_url("**/topics")
    assert topic not in first.http("GET", "/stats?format=json").body.decode()


def test_messages_are_requeued_and_cancelled_and_a_consumer_disconnected(
    phone: Page, cluster: Cluster, topic: str
) -> None:
    nsqd = cluster.nsqds[0]
    cluster.publish(topic, b"taken")
    consumer = nsqd.consumer(topic, "c")
    taken = consumer.message()
    for body in (b"sooner", b"never"):
        nsqd.http("POST", f"/pub?topic={topic}&defer=600000", body)
    wait_until(lambda: nsqd.shows(topic, "c", deferred_count=2), "both to be deferred")
    dialog = phone.locator("#dialog")

    def run_action(body: str, label: str, button: str) -> None:
        phone.locator("summary").filter(has_text=body).click()
        phone.get_by_role("button", name=label).locator("visible=true").click()
        dialog.get_by_role("button", name=button).click()

    phone.goto(f"/topics/{topic}/c")
    phone.get_by_role("link", name="Peek").click()
    phone.get_by_role("link", name="Deferred").click()
    run_action("never", "Cancel delivery", "Cancel message")
    expect(phone.locator(".notice")).to_contain_text("cancelled")
    run_action("sooner", "Requeue", "Requeue message")
    expect(phone.locator(".notice")).to_contain_text("requeued")
    assert nsqd.shows(topic, "c", deferred_count=0, depth=1)
    phone.get_by_role("link", name="In flight").click()
    run_action("taken", "Requeue", "Requeue message")
    expect(phone.locator(".notice")).to_contain_text(taken.id.decode())
    assert b"sooner" == consumer.message().body

    phone.goto(f"/topics/{topic}/c")
    phone.get_by_role("button", name="Disconnect").click()
    expect(dialog).to_contain_text("1 message in flight will be requeued at once")
    dialog.get_by_role("button", name="Disconnect").click()
    expect(phone.locator(".notice")).to_contain_text("disconnected")
    expect(phone.get_by_role("heading", name="No consumers")).to_be_visible()


def test_a_node_is_drained_and_its_page_shows_that_it_stopped(browser: Browser) -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("t", b"x")
        consumer = nsqd.consumer("t", "c")
        message = consumer.message()
        at = f"--nsqd-http-address={nsqd.http_address}"
        with (
            run_nsqadmin(at, "--sample-interval=200ms") as nsqadmin,
            watched(
                browser, nsqadmin.url, scheme="dark", expected_messages=ERROR_PAGE_MESSAGES
            ) as window,
        ):
            window.goto(f"/nodes/{nsqd.http_address}")
            window.get_by_role("button", name="Drain").click()
            expect(window.locator("#dialog")).to_contain_text(
                "1 consumer. nsqd stops when all messages are finished"
            )
            window.locator("#dialog").get_by_role("button", name="Drain node").click()
            expect(window.get_by_role("row").filter(has_text="draining")).to_be_visible()
            window.get_by_role("link", name=nsqd.http_address).click()
            expect(window.get_by_text("stops when consumers have finished")).to_be_visible()
            consumer.send(commands.fin(message.id))

            expect(window.get_by_role("heading", name="No nsqd is reachable")).to_be_visible()
        assert 0 == nsqd.wait()


def test_a_rewind_shows_how_many_messages_are_delivered_again(
    page: Page, cluster: Cluster, topic: str
) -> None:
    nsqd = cluster.nsqds[0]
    cluster.publish(topic, b"1", b"2")
    consumer = nsqd.consumer(topic, "c", rdy=2)
    for _ in range(2):
        consumer.send(commands.fin(consumer.message().id))
    wait_until(lambda: nsqd.shows(topic, "c", depth=0, in_flight_count=0), "all to be done")
    page.goto(f"/topics/{topic}/c")
    dialog = page.locator("#dialog")

    page.get_by_role("button", name="Rewind").click()
    dialog.get_by_label("New position").fill("nonsense")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not a position in the log")
    dialog.get_by_label("New position").fill("earliest")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("2 finished messages will be delivered again.")
    dialog.get_by_role("button", name="Rewind channel").click()

    expect(page.locator(".notice")).to_contain_text("Messages to be delivered again: 2.")
    assert b"1" == consumer.message().body


def wait_until_found(cluster: Cluster, query: str, name: str) -> None:
    """Wait until nsqadmin has polled the cluster and its search finds `name`."""
    target = f"/find?q={quote_plus(query)}"
    wait_until(
        lambda: name in cluster.nsqadmin.http("GET", target).body.decode(),
        f"the search to find {name}",
        seconds=60,  # After a slow poll, nsqadmin is idle for 24 times as long.
    )


def test_search_and_navigation_by_keyboard(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    cluster.create_channel(topic, "billing")
    wait_until_found(cluster, f"{topic} bill", "billing")

    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search topics")).to_be_focused()
    page.keyboard.type(topic[-12:] + " bill")
    expect(page.locator("#search-results").get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/topics/{topic}/billing")

    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url("**/nodes")
    page.keyboard.press("?")
    expect(page.locator("#shortcuts")).to_be_visible()


def test_typing_during_a_search_does_not_abort_the_request(
    page: Page, cluster: Cluster, topic: str
) -> None:
    """htmx would report the aborted request as an error: `htmx:sendAbort` in the console, and
    "not updating" at the bottom of the page.
    """
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    cluster.publish(topic, b"x")
    wait_until_found(cluster, topic, f">{topic}<")
    page.route("**/find?q=", hold)
    search = page.locator("#search")

    with page.expect_request("**/find?q="):
        search.focus()
    search.evaluate(
        "search => { window.typed = new Promise("
        "done => search.addEventListener('htmx:trigger', () => done(), { once: true })) }"
    )
    search.fill(topic)
    page.evaluate("window.typed")
    # Playwright calls `hold` only during another call.
    wait_until(lambda: page.title() != "" and held != [], "the first search to be held")
    held[0].continue_()

    expect(page.locator("#search-results").get_by_role("option")).to_have_count(1)
    expect(page.locator("#live-status")).to_have_text("live")


def test_topics_are_filtered_while_typing(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    expect(page.get_by_role("row").filter(has_text=topic)).to_be_visible()

    page.get_by_label("Filter topics").fill("no such topic")
    expect(page.get_by_text("No topics match “no such topic”")).to_be_visible()
    page.get_by_label("Filter topics").fill(topic)
    expect(page.locator("#live tbody tr")).to_have_count(1)


def test_the_chosen_theme_is_kept(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Toggle dark mode").click()
    dark = page.evaluate(background)
    page.reload()

    assert light != dark
    assert dark == page.evaluate(background)


SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PAGES = (
    *("/", "/topics/wide", "/topics/wide/c", "/consumers", "/nodes", "/nodes/{node}", "/counter"),
    *("/lookup", "/messages/wide", "/messages/wide/c?state=inflight", "/topics/no-such-topic"),
    *("/actions/delete?topic=wide", "/actions/seek?topic=wide&channel=c"),
)


@pytest.mark.parametrize("width", [1280, 360], ids=["desktop", "phone"])
def test_every_page_fits_and_has_enough_contrast_in_both_themes(
    browser: Browser, cluster: Cluster, width: int
) -> None:
    cluster.publish("wide", b'{"of":"%s"}' % (b"x" * 2000))
    cluster.nsqds[0].consumer("wide", "c").message()
    with watched(
        browser, cluster.nsqadmin.url, width=width, expected_messages=ERROR_PAGE_MESSAGES
    ) as window:
        for path in PAGES:
            window.goto(path.replace("{node}", cluster.nsqds[0].http_address))
            if window.locator(".messages summary").count():
                window.locator(".messages summary").first.click()

            assert window.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            for scheme in SCHEMES:
                window.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                look = window.evaluate(READABILITY)
                assert [] == look["faint"], (path, scheme)
                assert (scheme == "dark") == (look["luminance"] < 0.2), path


def test_a_page_shows_when_it_cannot_refresh(browser: Browser, cluster: Cluster) -> None:
    url = cluster.nsqadmin.url
    with watched(browser, url, expected_messages=OFFLINE_MESSAGES) as page:
        expect(page.locator("#live-status")).to_have_text("live")
        page.context.set_offline(True)
        try:
            page.evaluate("htmx.trigger(document.body, 'refresh')")
            expect(page.locator("#live-status")).to_have_text("not updating")
        finally:
            page.context.set_offline(False)
        expect(page.locator("#live-status")).to_have_text("live")
