"""The HTML pages and the actions, without a browser."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.client import HTTPConnection
from urllib.parse import unquote, urlencode

import pytest
from tests.nsqadmin.conftest import Cluster
from tests.nsqadmin.fake_servers import stock_nsqd_proxy, unused_address

from penstock.protocol import commands
from penstock.testing.nsqadmin import NsqadminProcess, run_nsqadmin
from penstock.testing.nsqd import run_nsqd
from penstock.testing.waiting import wait_until

HTML = {"Accept": "text/html"}


def page(nsqadmin: NsqadminProcess, path: str, *, status: int = 200) -> str:
    answer = nsqadmin.http("GET", path, headers=HTML)
    text = answer.body.decode()
    assert status == answer.status, text
    return text


def run_action(
    nsqadmin: NsqadminProcess, action: str, *, path: str = "", **form: str
) -> tuple[int, str, str]:
    """Post the form of an action. Returns the status, the redirect and the notice."""
    connection = HTTPConnection(nsqadmin.http_address, timeout=60)
    headers = {**HTML, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", path or f"/actions/{action}", urlencode(form), headers)
    response = connection.getresponse()
    cookie = response.getheader("Set-Cookie") or ""
    connection.close()
    return response.status, response.getheader("Location") or "", unquoted(cookie)


def unquoted(cookie: str) -> str:
    return unquote(cookie.partition("=")[2].partition(";")[0].strip('"'))


@pytest.mark.parametrize("path", ["/", "/topics", "/consumers", "/nodes", "/counter", "/lookup"])
def test_pages_contain_no_inline_scripts_or_styles(cluster: Cluster, path: str) -> None:
    cluster.publish("known", b"x")

    text = page(cluster.nsqadmin, path)

    assert text.startswith("<!doctype html>")
    assert "</html>" in text
    assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:", text)


def test_a_page_can_be_refreshed_in_part(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    answer = cluster.nsqadmin.http("GET", f"/topics/{topic}", headers={"HX-Request": "true"})

    assert b"<html" not in answer.body
    assert b"Channels" in answer.body


def test_html_in_a_body_is_escaped(cluster: Cluster, topic: str) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    cluster.publish(topic, evil.encode())

    text = page(cluster.nsqadmin, f"/messages/{topic}")

    assert evil not in text
    assert evil in unescape(text)


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/topics/no-such-topic", "Topic not found"),
        ("/topics/known/no-such-channel", "Channel not found"),
        ("/nodes/no-such-node", "Node not found"),
        ("/messages/no-such-topic", "Topic not found"),
        ("/no/such/page", "Page not found"),
    ],
)
def test_missing_pages_have_an_error_page(cluster: Cluster, path: str, title: str) -> None:
    cluster.publish("known", b"x")

    assert title in page(cluster.nsqadmin, path, status=404)


class TestHistory:
    def test_the_newest_come_first_and_older_ones_are_a_page_away(
        self, cluster: Cluster, topic: str
    ) -> None:
        cluster.publish(topic, *(b"m%03d" % number for number in range(120)))

        newest = page(cluster.nsqadmin, f"/messages/{topic}")
        (older,) = set(re.findall(r'href="([^"]*from=[0-9a-f]{8}%3A\d+)">Older', newest))
        before = page(cluster.nsqadmin, unescape(older))

        assert [f"m{number:03d}" for number in range(119, 69, -1)] == previews(newest)
        assert [f"m{number:03d}" for number in range(69, 19, -1)] == previews(before)
        assert ">Newer</a>" in before

    def test_bodies_are_searched(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"an apple", b"a pear", b"APPLES")

        text = page(cluster.nsqadmin, f"/messages/{topic}?q=apple")

        assert ["APPLES", "an apple"] == previews(text)
        assert "Searched 3 messages, 2 match" in text

    @pytest.mark.parametrize("start", ["earliest", "1h", "2020-01-01T00:00:00Z", "1"])
    def test_a_position_is_a_word_an_age_a_time_or_a_number(
        self, cluster: Cluster, topic: str, start: str
    ) -> None:
        topic = re.sub("[^a-z-]", "", topic)
        cluster.publish(topic, b"here")

        assert "here" in previews(page(cluster.nsqadmin, f"/messages/{topic}?from={start}"))

    def test_links_to_other_pages_are_valid_for_one_log(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, *(f"m{number:03d}".encode() for number in range(60)))
        older = re.search(
            r"from=([0-9a-f]{8}(?::|%3A)\d+)", page(cluster.nsqadmin, f"/messages/{topic}")
        )
        assert older is not None
        text = page(cluster.nsqadmin, f"/messages/{topic}?from={older[1]}")
        gone = page(cluster.nsqadmin, f"/messages/{topic}?from=00000000:1")

        assert "m000" in previews(text)
        assert [] == previews(gone)
        assert f"the log of {topic} is another one" in gone

    def test_an_invalid_position_is_an_error(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"x")

        text = unescape(page(cluster.nsqadmin, f"/messages/{topic}?from=yesterday"))

        assert "'yesterday' is not a position in the log" in text

    def test_each_node_has_its_own_history(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"first")
        cluster.publish(topic, b"second", node=1)
        nodes = [nsqd.http_address for nsqd in cluster.nsqds]

        found = [previews(page(cluster.nsqadmin, f"/messages/{topic}?node={at}")) for at in nodes]

        assert [["first"], ["second"]] == found


class TestPeek:
    def test_queued_in_flight_and_deferred_messages_are_listed(
        self, cluster: Cluster, topic: str
    ) -> None:
        nsqd = cluster.nsqds[0]
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        cluster.publish(topic, b"taken", b"waiting")
        with nsqd.connect() as producer:
            producer.call(commands.dpub(topic, 600_000, b"later"))
        consumer = nsqd.consumer(topic, "c")
        consumer.message()

        found = {
            state: previews(page(cluster.nsqadmin, f"/messages/{topic}/c?state={state}"))
            for state in ("queued", "inflight", "deferred")
        }

        assert {"queued": ["waiting"], "inflight": ["taken"], "deferred": ["later"]} == found

    def test_a_deferred_message_can_be_cancelled(self, cluster: Cluster, topic: str) -> None:
        nsqd = cluster.nsqds[0]
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        nsqd.consumer(topic, "c")
        nsqd.http("POST", f"/pub?topic={topic}&defer=600000", b"later")
        wait_until(lambda: nsqd.shows(topic, "c", deferred_count=1), "it to be deferred")
        wait_until(lambda: bool(cluster.ports_of(topic)), "nsqlookupd to know")
        text = page(cluster.nsqadmin, f"/messages/{topic}/c?state=deferred")
        (message_id,) = re.findall("<code>([0-9a-f]{16})</code>", text)
        form = {"topic": topic, "channel": "c", "node": nsqd.http_address, "id": message_id}

        assert 303 == run_action(cluster.nsqadmin, "cancel", **form)[0]
        assert 0 == nsqd.stats(topic, "c")["deferred_count"]
        assert "the message is no longer there" in run_action(cluster.nsqadmin, "cancel", **form)[2]

    @pytest.mark.parametrize("state", ["inflight", "deferred"])
    def test_a_message_can_be_requeued(self, cluster: Cluster, topic: str, state: str) -> None:
        nsqd = cluster.nsqds[0]
        cluster.publish(topic, b"taken")
        stuck = nsqd.consumer(topic, "c")
        stuck.message()
        stuck.send(commands.rdy(0))
        nsqd.http("POST", f"/pub?topic={topic}&defer=600000", b"later")
        wait_until(lambda: nsqd.shows(topic, "c", deferred_count=1), "it to be deferred")
        text = page(cluster.nsqadmin, f"/messages/{topic}/c?state={state}")
        (message_id,) = re.findall("<code>([0-9a-f]{16})</code>", text)
        form = {"topic": topic, "channel": "c", "node": nsqd.http_address, "id": message_id}
        query = urlencode({"state": state, **form})

        asked = page(cluster.nsqadmin, f"/actions/requeue?{query}")
        status, to, notice = run_action(cluster.nsqadmin, "requeue", state=state, **form)
        received = nsqd.consumer(topic, "c").message()

        assert f"Message {message_id} will be" in asked
        assert (303, True) == (status, to.endswith(f"state={state}"))
        assert f"Message {message_id} requeued." == notice
        assert message_id == received.id.decode()


class TestActions:
    def test_a_confirmation_says_what_will_be_lost(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"1", b"2")
        cluster.create_channel(topic, "c")

        def confirmation(action: str, **names: str) -> str:
            query = urlencode({"topic": topic, **names})
            return unescape(page(cluster.nsqadmin, f"/actions/{action}?{query}"))

        assert "2 queued messages, 0 in flight and 0 deferred will be deleted" in confirmation(
            "empty", channel="c"
        )
        assert "0 consumers will be disconnected" in confirmation("delete", channel="c")
        assert "with its 1 channel and 2 messages" in confirmation("delete")
        assert "its 2 messages on this node" in confirmation(
            "tombstone", node=cluster.nsqds[0].http_address
        )

    def test_a_confirmation_for_a_commit_channel_says_what_its_job_loses(
        self, cluster: Cluster, topic: str
    ) -> None:
        cluster.publish(topic, b"1", b"2")
        create = f"/channel/create?topic={topic}&channel=spark&from=earliest&mode=commit"
        cluster.nsqds[0].post(create)

        def confirmation(action: str, **args: str) -> str:
            query = urlencode({"topic": topic, "channel": "spark", **args})
            return unescape(page(cluster.nsqadmin, f"/actions/{action}?{query}"))

        deletion, emptying = confirmation("delete"), confirmation("empty")

        for asked in (deletion, emptying):
            assert "has not committed 2 messages yet" in asked
            assert (
                "nsqd may then delete those that no other channel and no retention setting keeps"
                in asked
            )
            assert "consumer subscribes" not in asked
        assert "creates the channel again at its next commit" in deletion
        assert "Pausing the channel does not stop the job" in confirmation("pause")

    def test_rewinding_delivers_as_many_messages_again_as_it_says(
        self, cluster: Cluster, topic: str
    ) -> None:
        nsqd = cluster.nsqds[0]
        cluster.publish(topic, b"1", b"2", b"3")
        consumer = nsqd.consumer(topic, "c", rdy=3)
        for _ in range(3):
            consumer.send(commands.fin(consumer.message().id))
        wait_until(lambda: nsqd.shows(topic, "c", depth=0, in_flight_count=0), "all to be done")
        names = {"topic": topic, "channel": "c", "to": "earliest"}

        asked = unescape(page(cluster.nsqadmin, f"/actions/seek?{urlencode(names)}"))
        status, to, notice = run_action(cluster.nsqadmin, "seek", **names)

        assert "3 finished messages will be delivered again." in asked
        assert (303, f"/topics/{topic}/c") == (status, to)
        assert "Messages to be delivered again: 3." in notice
        assert b"1" == consumer.message().body

    def test_rewinding_a_commit_channel_moves_only_its_position(
        self, cluster: Cluster, topic: str
    ) -> None:
        nsqd = cluster.nsqds[0]
        cluster.publish(topic, b"1", b"2")
        nsqd.post(f"/channel/create?topic={topic}&channel=spark&from=latest&mode=commit")
        names = {"topic": topic, "channel": "spark", "to": "earliest"}

        asked = unescape(page(cluster.nsqadmin, f"/actions/seek?{urlencode(names)}"))
        _, _, notice = run_action(cluster.nsqadmin, "seek", **names)

        assert "2 messages will count as not committed." in asked
        assert "The job had committed 2 of them." in asked
        assert "continues from its own checkpoint" in asked
        assert "deliver" not in asked
        assert "Channel spark moved to the earliest stored message." == notice
        assert nsqd.shows(topic, "spark", depth=2)

    def test_urls_of_earlier_versions_work(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"x")
        form = {"deed": "pause", "topic": topic}

        asked = page(cluster.nsqadmin, f"/confirm?{urlencode(form)}")
        status, _, notice = run_action(cluster.nsqadmin, "", path="/do", **form)

        assert f"Pause topic {topic}?" in asked
        assert (303, f"Topic {topic} paused.") == (status, notice)
        assert 404 == run_action(cluster.nsqadmin, "", path="/do", deed="burn")[0]

    def test_a_consumer_is_disconnected(self, cluster: Cluster, topic: str) -> None:
        nsqd = cluster.nsqds[0]
        cluster.publish(topic, b"1")
        consumer = nsqd.consumer(topic, "c")
        consumer.message()
        text = page(cluster.nsqadmin, f"/topics/{topic}/c")
        (url,) = set(re.findall(r'href="([^"]*/actions/kick[^"]*)"', text))
        asked = page(cluster.nsqadmin, unescape(url))
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked))

        status, to, notice = run_action(cluster.nsqadmin, "kick", **form)

        assert "1 message in flight will be requeued at once" in asked
        assert (303, f"/topics/{topic}/c") == (status, to)
        assert f"Consumer {consumer.local_address} disconnected from {nsqd.http_address}." == notice
        assert nsqd.shows(topic, "c", client_count=0, depth=1)
        assert "no longer connected" in run_action(cluster.nsqadmin, "kick", **form)[2]
        assert "Action not possible" in page(cluster.nsqadmin, unescape(url))

    def test_retention_is_set_and_shown(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"x")

        status, _, _ = run_action(
            cluster.nsqadmin, "retention", topic=topic, time="2h", bytes="5000"
        )

        assert 303 == status
        text = page(cluster.nsqadmin, f"/topics/{topic}")
        assert "are kept for 2h or up to 5 kB" in text
        assert (
            "Action failed."
            in run_action(cluster.nsqadmin, "retention", topic=topic, time="long")[2]
        )

    def test_an_invalid_name_gets_an_error_message(self, cluster: Cluster) -> None:
        notice = run_action(cluster.nsqadmin, "create", topic="a b")[2]

        assert "'a b' is not a valid topic name" in notice

    @pytest.mark.parametrize("action", ["", "burn"])
    def test_an_unknown_action_is_not_found(self, cluster: Cluster, action: str) -> None:
        assert 404 == run_action(cluster.nsqadmin, action, topic="t")[0]

    def test_an_address_outside_the_cluster_gets_no_request(self, cluster: Cluster) -> None:
        """Otherwise nsqadmin could be made to send requests to any address."""
        assert 404 == run_action(cluster.nsqadmin, "drain", node=unused_address())[0]


def test_a_node_is_drained() -> None:
    with run_nsqd() as nsqd, watching(nsqd.http_address) as nsqadmin:
        nsqd.publish("t", b"x")
        nsqd.post("/channel/create?topic=t&channel=c")

        assert 303 == run_action(nsqadmin, "drain", node=nsqd.http_address)[0]
        assert nsqd.http("GET", "/stats?format=json").json()["draining"]
        assert "draining" in page(nsqadmin, f"/nodes/{nsqd.http_address}")
        consumer = nsqd.consumer("t", "c")
        consumer.send(commands.fin(consumer.message().id))
        assert 0 == nsqd.wait()
        assert "No nsqd is reachable" in page(nsqadmin, "/lookup", status=502)


def test_actions_that_nsqs_nsqd_lacks_are_not_offered(cluster: Cluster, topic: str) -> None:
    """The proxy hides the endpoints that NSQ's nsqd does not have."""
    cluster.publish(topic, b"x")
    cluster.create_channel(topic, "c")
    cluster.nsqds[0].consumer(topic, "c")
    with stock_nsqd_proxy(cluster.nsqds[0].http_address) as address, watching(address) as nsqadmin:
        topic_page = page(nsqadmin, f"/topics/{topic}")
        channel_page = page(nsqadmin, f"/topics/{topic}/c")

        assert "Delete" in topic_page
        assert "Delete" in channel_page
        for offered in ("Retention", "/messages/", "Stored"):
            assert offered not in topic_page
        for offered in ("Rewind", "Peek", "Position", "Disconnect"):
            assert offered not in channel_page
        assert "Drain" not in page(nsqadmin, f"/nodes/{address}")
        assert "No message history" in page(nsqadmin, f"/messages/{topic}")


def test_users_without_admin_rights_see_no_actions(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    lookupd = f"--lookupd-http-address={cluster.nsqlookupd.http_address}"
    with run_nsqadmin(lookupd, "--admin-user=ann") as nsqadmin:
        assert "Delete" not in page(nsqadmin, f"/topics/{topic}")
        assert 403 == run_action(nsqadmin, "delete", topic=topic)[0]
        page(nsqadmin, f"/actions/delete?topic={topic}", status=403)


def test_an_unreachable_node_is_shown_as_a_warning() -> None:
    with run_nsqd() as nsqd, watching(nsqd.http_address, unused_address()) as nsqadmin:
        nsqd.publish("alive", b"x")
        text = page(nsqadmin, "/lookup")
        assert "WARNING" in text
        wait_until(lambda: "alive" in page(nsqadmin, "/topics"), "the topic to be seen")


def previews(text: str) -> list[str]:
    """The previews of the messages on a page."""
    return [unescape(found) for found in re.findall(r'class="preview[^>]*>([^<]*)<', text)]


@contextmanager
def watching(*addresses: str) -> Iterator[NsqadminProcess]:
    flags = [f"--nsqd-http-address={address}" for address in addresses]
    with run_nsqadmin(*flags, "--sample-interval=200ms") as nsqadmin:
        yield nsqadmin


def test_a_long_list_is_cut_unless_all_are_requested() -> None:
    with run_nsqd() as nsqd, watching(nsqd.http_address) as nsqadmin:
        for number in range(260):
            nsqd.post(f"/topic/create?topic=t{number:03d}")
        wait_until(lambda: "250 of 260 topics" in page(nsqadmin, "/topics"), "all to be seen")

        assert 260 == len(re.findall(r'href="/topics/t\d', page(nsqadmin, "/topics?all=true")))
        assert 1 == len(re.findall(r'href="/topics/t\d', page(nsqadmin, "/topics?q=T259")))
