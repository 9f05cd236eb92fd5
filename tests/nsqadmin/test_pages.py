"""The pages, as HTML: what they show, offer and do, without a browser."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.client import HTTPConnection
from urllib.parse import unquote, urlencode

import pytest
from tests.nsqadmin.conftest import Cluster
from tests.nsqadmin.strangers import nobody, stock

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


def do(nsqadmin: NsqadminProcess, **form: str) -> tuple[int, str, str]:
    """Sends a form: the status, where the browser is sent, and what it will be told there."""
    connection = HTTPConnection(nsqadmin.http_address, timeout=60)
    headers = {**HTML, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/do", urlencode(form), headers)
    response = connection.getresponse()
    cookie = response.getheader("Set-Cookie") or ""
    connection.close()
    return response.status, response.getheader("Location") or "", unquoted(cookie)


def unquoted(cookie: str) -> str:
    return unquote(cookie.partition("=")[2].partition(";")[0].strip('"'))


@pytest.mark.parametrize("path", ["/", "/topics", "/consumers", "/nodes", "/counter", "/lookup"])
def test_pages_are_whole_and_have_no_script_or_style_in_them(cluster: Cluster, path: str) -> None:
    cluster.publish("known", b"x")

    text = page(cluster.nsqadmin, path)

    assert text.startswith("<!doctype html>")
    assert "</html>" in text
    assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:", text)


def test_a_page_asks_for_its_living_part_alone(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    answer = cluster.nsqadmin.http("GET", f"/topics/{topic}", headers={"HX-Request": "true"})

    assert b"<html" not in answer.body
    assert b"Channels" in answer.body


def test_a_body_full_of_html_is_shown_and_never_run(cluster: Cluster, topic: str) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    cluster.publish(topic, evil.encode())

    text = page(cluster.nsqadmin, f"/messages/{topic}")

    assert evil not in text
    assert evil in unescape(text)


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/topics/no-such-topic", "There is no such topic"),
        ("/topics/known/no-such-channel", "There is no such channel"),
        ("/nodes/no-such-node", "There is no such node"),
        ("/messages/no-such-topic", "There is no such topic"),
        ("/no/such/page", "There is no such page"),
    ],
)
def test_what_is_not_there_is_said_so(cluster: Cluster, path: str, title: str) -> None:
    cluster.publish("known", b"x")

    assert title in page(cluster.nsqadmin, path, status=404)


class TestHistory:
    def test_the_newest_come_first_and_older_ones_are_a_page_away(
        self, cluster: Cluster, topic: str
    ) -> None:
        cluster.publish(topic, *(b"m%03d" % number for number in range(120)))

        newest = page(cluster.nsqadmin, f"/messages/{topic}")
        (older,) = set(re.findall(r'href="([^"]*from=\d+)">Older', newest))
        before = page(cluster.nsqadmin, unescape(older))

        assert [f"m{number:03d}" for number in range(119, 69, -1)] == shown(newest)
        assert [f"m{number:03d}" for number in range(69, 19, -1)] == shown(before)
        assert ">Newer</a>" in before

    def test_bodies_are_searched(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"an apple", b"a pear", b"APPLES")

        text = page(cluster.nsqadmin, f"/messages/{topic}?q=apple")

        assert ["APPLES", "an apple"] == shown(text)
        assert "3 were searched, 2 have" in text

    @pytest.mark.parametrize("start", ["earliest", "1h", "2020-01-01T00:00:00Z", "1"])
    def test_a_place_is_a_word_an_age_a_time_or_a_number(
        self, cluster: Cluster, topic: str, start: str
    ) -> None:
        topic = re.sub("[^a-z-]", "", topic)
        cluster.publish(topic, b"here")

        assert "here" in shown(page(cluster.nsqadmin, f"/messages/{topic}?from={start}"))

    def test_what_is_no_place_is_said_so(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"x")

        text = unescape(page(cluster.nsqadmin, f"/messages/{topic}?from=yesterday"))

        assert "'yesterday' is not a position in the log" in text

    def test_each_node_has_its_own(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"first")
        cluster.publish(topic, b"second", node=1)
        nodes = [nsqd.http_address for nsqd in cluster.nsqds]

        found = [shown(page(cluster.nsqadmin, f"/messages/{topic}?node={at}")) for at in nodes]

        assert [["first"], ["second"]] == found


class TestPeek:
    def test_what_waits_is_in_flight_and_is_deferred_can_be_seen(
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
            state: shown(page(cluster.nsqadmin, f"/messages/{topic}/c?state={state}"))
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

        assert 303 == do(cluster.nsqadmin, deed="cancel", **form)[0]
        assert 0 == nsqd.stats(topic, "c")["deferred_count"]
        assert "the message is no longer there" in do(cluster.nsqadmin, deed="cancel", **form)[2]

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
        query = urlencode({"deed": "requeue", "state": state, **form})

        asked = page(cluster.nsqadmin, f"/confirm?{query}")
        status, to, notice = do(cluster.nsqadmin, deed="requeue", state=state, **form)
        received = nsqd.consumer(topic, "c").message()

        assert f"Message {message_id} will be" in asked
        assert (303, True) == (status, to.endswith(f"state={state}"))
        assert f"Message {message_id} is to be delivered again." == notice
        assert message_id == received.id.decode()


class TestDeeds:
    def test_a_question_says_what_will_be_lost(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"1", b"2")
        cluster.create_channel(topic, "c")

        def question(deed: str, **names: str) -> str:
            query = urlencode({"deed": deed, "topic": topic, **names})
            return unescape(page(cluster.nsqadmin, f"/confirm?{query}"))

        assert "2 messages waiting, 0 in flight and 0 deferred will be dropped" in question(
            "empty", channel="c"
        )
        assert "and 0 consumers disconnected" in question("delete", channel="c")
        assert "with its 1 channel and the 2 messages in them" in question("delete")
        assert "the 2 messages it holds there" in question(
            "tombstone", node=cluster.nsqds[0].http_address
        )

    def test_a_question_about_a_channel_that_is_moved_by_commits_tells_what_its_job_loses(
        self, cluster: Cluster, topic: str
    ) -> None:
        cluster.publish(topic, b"1", b"2")
        create = f"/channel/create?topic={topic}&channel=spark&from=earliest&mode=commit"
        cluster.nsqds[0].post(create)

        def question(deed: str) -> str:
            query = urlencode({"deed": deed, "topic": topic, "channel": "spark"})
            return unescape(page(cluster.nsqadmin, f"/confirm?{query}"))

        deletion, emptying = question("delete"), question("empty")

        for asked in (deletion, emptying):
            assert "has not committed 2 messages yet" in asked
            assert "nsqd may then delete those that no other channel and no retention" in asked
            assert "consumer that subscribes" not in asked
        assert "creates the channel anew at its next commit" in deletion
        assert "Pausing it does not stop the job" in question("pause")

    def test_rewinding_says_how_many_come_again_and_brings_them(
        self, cluster: Cluster, topic: str
    ) -> None:
        nsqd = cluster.nsqds[0]
        cluster.publish(topic, b"1", b"2", b"3")
        consumer = nsqd.consumer(topic, "c", rdy=3)
        for _ in range(3):
            consumer.send(commands.fin(consumer.message().id))
        wait_until(lambda: nsqd.shows(topic, "c", depth=0, in_flight_count=0), "all to be done")
        names = {"topic": topic, "channel": "c", "to": "earliest"}

        query = urlencode({"deed": "seek", **names})
        asked = unescape(page(cluster.nsqadmin, f"/confirm?{query}"))
        status, to, notice = do(cluster.nsqadmin, deed="seek", **names)

        assert "3 of them were done with, and will come once more." in asked
        assert (303, f"/topics/{topic}/c") == (status, to)
        assert "3 messages will come once more" in notice
        assert b"1" == consumer.message().body

    def test_a_consumer_is_sent_away(self, cluster: Cluster, topic: str) -> None:
        nsqd = cluster.nsqds[0]
        cluster.publish(topic, b"1")
        consumer = nsqd.consumer(topic, "c")
        consumer.message()
        text = page(cluster.nsqadmin, f"/topics/{topic}/c")
        (url,) = set(re.findall(r'href="([^"]*deed=kick[^"]*)"', text))
        asked = page(cluster.nsqadmin, unescape(url))
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked))

        status, to, notice = do(cluster.nsqadmin, **form)

        assert "The 1 message it has in flight will come back at once" in asked
        assert (303, f"/topics/{topic}/c") == (status, to)
        assert f"{consumer.local_address} was disconnected from {nsqd.http_address}." == notice
        assert nsqd.shows(topic, "c", client_count=0, depth=1)
        assert "no longer connected" in do(cluster.nsqadmin, **form)[2]
        assert "That cannot be done" in page(cluster.nsqadmin, unescape(url))

    def test_retention_is_set_and_shown(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"x")

        status, _, _ = do(cluster.nsqadmin, deed="retention", topic=topic, time="2h", bytes="5000")

        assert 303 == status
        text = page(cluster.nsqadmin, f"/topics/{topic}")
        assert "is kept for 2h or up to 5 kB" in text
        assert "Not done." in do(cluster.nsqadmin, deed="retention", topic=topic, time="long")[2]

    def test_a_name_that_is_none_is_refused_in_words(self, cluster: Cluster) -> None:
        notice = do(cluster.nsqadmin, deed="create", topic="a b")[2]

        assert "'a b' is no name for a topic" in notice

    @pytest.mark.parametrize("deed", ["", "burn"])
    def test_an_unknown_deed_is_refused(self, cluster: Cluster, deed: str) -> None:
        assert 404 == do(cluster.nsqadmin, deed=deed, topic="t")[0]

    def test_nothing_is_sent_to_a_node_that_is_not_of_the_cluster(self, cluster: Cluster) -> None:
        """Or nsqadmin could be made to knock at any door."""
        assert 404 == do(cluster.nsqadmin, deed="drain", node=nobody())[0]


def test_a_node_is_drained() -> None:
    with run_nsqd() as nsqd, watching(nsqd.http_address) as nsqadmin:
        nsqd.publish("t", b"x")
        nsqd.post("/channel/create?topic=t&channel=c")

        assert 303 == do(nsqadmin, deed="drain", node=nsqd.http_address)[0]
        assert nsqd.http("GET", "/stats?format=json").json()["draining"]
        assert "draining" in page(nsqadmin, f"/nodes/{nsqd.http_address}")
        consumer = nsqd.consumer("t", "c")
        consumer.send(commands.fin(consumer.message().id))
        assert 0 == nsqd.wait()
        assert "No nsqd answers" in page(nsqadmin, "/lookup", status=502)


def test_what_an_nsqd_of_nsqs_cannot_do_is_not_offered(cluster: Cluster, topic: str) -> None:
    """Stands in for one by refusing the paths that it does not know."""
    cluster.publish(topic, b"x")
    cluster.create_channel(topic, "c")
    cluster.nsqds[0].consumer(topic, "c")
    with stock(cluster.nsqds[0].http_address) as address, watching(address) as nsqadmin:
        topic_page = page(nsqadmin, f"/topics/{topic}")
        channel_page = page(nsqadmin, f"/topics/{topic}/c")

        assert "Delete" in topic_page
        assert "Delete" in channel_page
        for offered in ("Retention", "/messages/", "Stored"):
            assert offered not in topic_page
        for offered in ("Rewind", "Peek", "Done up to", "Disconnect"):
            assert offered not in channel_page
        assert "Drain" not in page(nsqadmin, f"/nodes/{address}")
        assert "No node keeps a history" in page(nsqadmin, f"/messages/{topic}")


def test_those_who_may_not_change_things_are_not_offered_to(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, b"x")
    lookupd = f"--lookupd-http-address={cluster.nsqlookupd.http_address}"
    with run_nsqadmin(lookupd, "--admin-user=ann") as nsqadmin:
        assert "Delete" not in page(nsqadmin, f"/topics/{topic}")
        assert 403 == do(nsqadmin, deed="delete", topic=topic)[0]
        page(nsqadmin, f"/confirm?deed=delete&topic={topic}", status=403)


def test_a_node_that_is_down_is_shown_beside_the_rest() -> None:
    with run_nsqd() as nsqd, watching(nsqd.http_address, nobody()) as nsqadmin:
        nsqd.publish("alive", b"x")
        text = page(nsqadmin, "/lookup")
        assert "WARNING" in text
        wait_until(lambda: "alive" in page(nsqadmin, "/topics"), "the topic to be seen")


def shown(text: str) -> list[str]:
    """The previews of the messages on a page."""
    return [unescape(found) for found in re.findall(r'class="preview[^>]*>([^<]*)<', text)]


@contextmanager
def watching(*addresses: str) -> Iterator[NsqadminProcess]:
    flags = [f"--nsqd-http-address={address}" for address in addresses]
    with run_nsqadmin(*flags, "--sample-interval=200ms") as nsqadmin:
        yield nsqadmin


def test_a_long_list_is_shown_in_part_until_all_is_asked_for() -> None:
    with run_nsqd() as nsqd, watching(nsqd.http_address) as nsqadmin:
        for number in range(260):
            nsqd.post(f"/topic/create?topic=t{number:03d}")
        wait_until(lambda: "250 of 260 topics" in page(nsqadmin, "/topics"), "all to be seen")

        assert 260 == len(re.findall(r'href="/topics/t\d', page(nsqadmin, "/topics?all=true")))
        assert 1 == len(re.findall(r'href="/topics/t\d', page(nsqadmin, "/topics?q=T259")))
