"""nsqadmin in a real browser: what an operator does all day."""

import re

import pytest
from playwright.sync_api import Page, expect
from tests.nsqadmin.conftest import Cluster

from penstock.testing.waiting import wait_until
from penstock.wire import commands


def test_a_topic_is_created(page: Page, topic: str) -> None:
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Name of the topic").fill(topic)
    page.get_by_label("Name of a channel").fill("c")
    page.get_by_role("button", name="Create").click()

    expect(page.get_by_role("status").first).to_have_text(f"Channel c of {topic} was created.")
    expect(page.get_by_role("heading", level=1)).to_contain_text(topic)
    page.goto("/lookup")
    expect(page.get_by_role("row").filter(has_text=topic)).to_contain_text("c")


def test_charts_move_by_themselves(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    cluster.create_channel(topic, "c")
    page.goto(f"/topics/{topic}")
    chart = page.locator("figure[data-chart=waiting]")
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart).to_have_attribute("data-latest", re.compile("^1,"))

    cluster.publish(topic, *[b"x"] * 41)

    expect(chart).to_have_attribute("data-latest", re.compile("^42,"))
    expect(page.locator("#figures")).to_contain_text("42")
    expect(chart.locator(".u-legend")).to_contain_text("42")
    page.get_by_role("button", name="1 hour").click()
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")


def test_history_is_browsed_and_bodies_are_only_shown(
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
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".messages .preview")).to_have_text(["m17"])


def test_a_channel_is_paused_emptied_and_deleted_and_each_is_asked_about(
    page: Page, cluster: Cluster, topic: str
) -> None:
    nsqd = cluster.nsqds[0]
    cluster.publish(topic, b"1", b"2", b"3")
    cluster.create_channel(topic, "c")
    page.goto(f"/topics/{topic}/c")
    dialog = page.locator("#dialog")

    page.get_by_role("button", name="Pause").click()
    expect(dialog).to_contain_text("Its 0 consumers will get no messages")
    dialog.get_by_role("button", name="Pause channel").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
    assert nsqd.stats(topic, "c")["paused"]
    page.get_by_role("button", name="Unpause").click()
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("paused")

    page.get_by_role("button", name="Empty").click()
    expect(dialog).to_contain_text("3 messages waiting, 0 in flight and 0 deferred will be dropped")
    dialog.get_by_text("Leave it").click()
    expect(dialog).to_be_hidden()
    assert 3 == nsqd.stats(topic, "c")["depth"]
    page.get_by_role("button", name="Empty").click()
    dialog.get_by_role("button", name="Empty channel").click()
    expect(page.locator(".notice")).to_contain_text("was emptied")
    assert 0 == nsqd.stats(topic, "c")["depth"]

    page.get_by_role("button", name="Delete").click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete channel").click()
    expect(page.locator(".notice")).to_have_text(f"Channel c of {topic} was deleted.")
    assert [] == nsqd.stats(topic)["channels"]


def test_a_rewind_says_how_many_messages_come_again(
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
    dialog.get_by_label("Where to move it").fill("nonsense")
    dialog.get_by_role("button", name="What will happen?").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is no place in a log")
    dialog.get_by_label("Where to move it").fill("earliest")
    dialog.get_by_role("button", name="What will happen?").click()
    expect(dialog).to_contain_text("2 of them were done with, and will come once more.")
    dialog.get_by_role("button", name="Move channel").click()

    expect(page.locator(".notice")).to_contain_text("2 messages will come once more")
    assert b"1" == consumer.message().body


def test_everything_is_found_by_keyboard(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    cluster.create_channel(topic, "billing")
    wait_until(
        lambda: topic in cluster.nsqadmin.http("GET", "/find?q=" + topic).body.decode(),
        "the topic to be seen",
    )

    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Find a topic")).to_be_focused()
    page.keyboard.type(topic[-12:] + " bill")
    expect(page.locator("#found").get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/topics/{topic}/billing")

    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url("**/nodes")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_topics_are_filtered_while_one_types(page: Page, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    expect(page.get_by_role("row").filter(has_text=topic)).to_be_visible()

    page.get_by_label("Filter topics").fill("no such topic")
    expect(page.get_by_text("No topic has “no such topic” in its name")).to_be_visible()
    page.get_by_label("Filter topics").fill(topic)
    expect(page.locator("#live tbody tr")).to_have_count(1)


def test_the_theme_is_chosen_and_kept(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Light or dark").click()
    dark = page.evaluate(background)
    page.reload()

    assert light != dark
    assert dark == page.evaluate(background)


@pytest.mark.parametrize(
    "path", ["/", "/topics/wide", "/topics/wide/c", "/consumers", "/nodes", "/lookup"]
)
def test_pages_fit_on_a_phone(phone: Page, cluster: Cluster, path: str) -> None:
    cluster.publish("wide", b"x")
    cluster.create_channel("wide", "c")
    phone.goto(path)

    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_says_when_it_gets_no_news(page: Page) -> None:
    expect(page.locator("#pulse")).to_have_text("live")
    page.context.set_offline(True)
    try:
        page.evaluate("htmx.trigger(document.body, 'tick')")
        expect(page.locator("#pulse")).to_have_text("not updating")
    finally:
        page.context.set_offline(False)
    expect(page.locator("#pulse")).to_have_text("live")
