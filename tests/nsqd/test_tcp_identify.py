"""IDENTIFY and heartbeats, with a running nsqd."""

import json
import time
from collections.abc import Iterator, Mapping

import pytest

from penstock.common.errors import ProtocolError
from penstock.protocol import commands, frames
from penstock.protocol.frames import ResponseFrame
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import WireError

HEARTBEAT = ResponseFrame(b"_heartbeat_")


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


def identify_bytes(body: bytes) -> bytes:
    return b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body


def test_the_response_has_the_bytes_of_nsq(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client:
        answer = client.call(identify_bytes(b'{"feature_negotiation":true}'))

    expected = (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
        b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
        b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
        b'"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
    )
    assert expected == answer


def test_answer_follows_the_flags() -> None:
    flags = (
        "--max-rdy-count=7",
        "--msg-timeout=5s",
        "--max-msg-timeout=2m",
        "--output-buffer-timeout=100ms",
        "--max-deflate-level=3",
        "--topology-region=<north>",
        "--topology-zone=z1",
    )
    with run_nsqd(*flags) as nsqd:
        client = nsqd.connect()
        answer = client.call(
            identify_bytes(b'{"feature_negotiation":true,"topology_zone":"the client\'s"}')
        )

    expected = (
        b'{"max_rdy_count":7,"version":"1.3.0","max_msg_timeout":120000,"msg_timeout":5000,'
        b'"tls_v1":false,"deflate":false,"deflate_level":3,"max_deflate_level":3,"snappy":false,'
        b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
        b'"output_buffer_timeout":100,"topology_region":"\\u003cnorth\\u003e",'
        b'"topology_zone":"z1"}'
    )
    assert expected == answer


def test_without_negotiation_the_answer_is_ok(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client:
        assert b"OK" == client.call(identify_bytes(b'{"client_id":"c","heartbeat_interval":1000}'))


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ({"msg_timeout": 1000}, {"msg_timeout": 1000}),
        ({"msg_timeout": 900_000}, {"msg_timeout": 900_000}),
        ({"msg_timeout": 0}, {"msg_timeout": 60_000}),
        ({"heartbeat_interval": 1000}, {}),
        ({"heartbeat_interval": 60_000}, {}),
        ({"heartbeat_interval": -1}, {}),
        ({"heartbeat_interval": 0}, {}),
        ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
        ({"output_buffer_size": 65_536}, {"output_buffer_size": 65_536}),
        ({"output_buffer_size": 0}, {"output_buffer_size": 16_384}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
        ({"output_buffer_timeout": 25}, {"output_buffer_timeout": 25}),
        ({"output_buffer_timeout": 30_000}, {"output_buffer_timeout": 30_000}),
        ({"output_buffer_timeout": 0}, {"output_buffer_timeout": 250}),
        ({"output_buffer_timeout": -1}, {"output_buffer_timeout": 0}),
        ({"sample_rate": 0}, {"sample_rate": 0}),
        ({"sample_rate": 99}, {"sample_rate": 99}),
        ({"tls_v1": True}, {"tls_v1": False}),
        ({"SAMPLE_RATE": 5}, {"sample_rate": 5}),
        ({"unheard_of": [1, {}]}, {}),
        ({"short_id": "s", "long_id": "l"}, {}),
    ],
    ids=json.dumps,
)
def test_valid_requests_are_granted(
    nsqd: NsqdProcess, asked: Mapping[str, object], agreed: Mapping[str, object]
) -> None:
    with nsqd.connect() as client:
        answer = client.identify(**asked)

    assert agreed == {key: answer[key] for key in agreed}


def test_no_output_buffer_size_can_be_requested_if_the_maximum_is_0() -> None:
    """As in NSQ: the default stays, buffering can be disabled, and every size is refused."""
    with run_nsqd("--max-output-buffer-size=0") as nsqd:
        sizes = {0: 16_384, -1: 1}
        for asked, agreed in sizes.items():
            with nsqd.connect() as client:
                assert agreed == client.identify(output_buffer_size=asked)["output_buffer_size"]
        with nsqd.connect() as client, pytest.raises(WireError, match=r"\(16384\) is invalid"):
            client.identify(output_buffer_size=16_384)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"heartbeat_interval":999}', "heartbeat interval (999) is invalid"),
        ('{"heartbeat_interval":60001}', "heartbeat interval (60001) is invalid"),
        ('{"heartbeat_interval":-2}', "heartbeat interval (-2) is invalid"),
        ('{"output_buffer_size":63}', "output buffer size (63) is invalid"),
        ('{"output_buffer_size":65537}', "output buffer size (65537) is invalid"),
        ('{"output_buffer_size":-2}', "output buffer size (-2) is invalid"),
        ('{"output_buffer_timeout":24}', "output buffer timeout (24) is invalid"),
        ('{"output_buffer_timeout":30001}', "output buffer timeout (30001) is invalid"),
        ('{"sample_rate":100}', "sample rate (100) is invalid"),
        ('{"sample_rate":-1}', "sample rate (-1) is invalid"),
        ('{"msg_timeout":999}', "msg timeout (999) is invalid"),
        ('{"msg_timeout":900001}', "msg timeout (900001) is invalid"),
        ('{"msg_timeout":-1}', "msg timeout (-1) is invalid"),
        ('{"heartbeat_interval":1000.5}', "failed to decode JSON body"),
        ('{"heartbeat_interval":"1000"}', "failed to decode JSON body"),
        ('{"heartbeat_interval":true}', "failed to decode JSON body"),
        ('{"client_id":1}', "failed to decode JSON body"),
        ('{"snappy":1}', "failed to decode JSON body"),
        ("[]", "failed to decode JSON body"),
        ("{", "failed to decode JSON body"),
        ("\xff", "failed to decode JSON body"),
    ],
)
def test_invalid_requests_are_refused(nsqd: NsqdProcess, body: str, detail: str) -> None:
    with nsqd.connect() as client:
        with pytest.raises(WireError) as refusal:
            client.call(identify_bytes(body.encode("latin-1")))

        assert ("E_BAD_BODY", f"IDENTIFY {detail}") == (refusal.value.code, refusal.value.detail)
        assert b"" == client.read_to_end()


@pytest.mark.parametrize("body", [b"null", b"{}", b" {} "])
def test_empty_bodies_are_accepted(nsqd: NsqdProcess, body: bytes) -> None:
    with nsqd.connect() as client:
        assert b"OK" == client.call(identify_bytes(body))


@pytest.mark.parametrize(
    ("size", "detail"),
    [
        (0, "invalid body size 0"),
        (-1, "invalid body size -1"),
        (5_242_881, "body too big 5242881 > 5242880"),
    ],
)
def test_impossible_sizes_are_refused(nsqd: NsqdProcess, size: int, detail: str) -> None:
    with nsqd.connect() as client:
        with pytest.raises(WireError, match="E_BAD_BODY") as refusal:
            client.call(b"IDENTIFY\n" + size.to_bytes(4, "big", signed=True))

        assert f"IDENTIFY {detail}" == refusal.value.detail
        assert b"" == client.read_to_end()


def test_second_identify_is_answered(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client:
        client.identify(msg_timeout=2000)

        assert 3000 == client.identify(msg_timeout=3000)["msg_timeout"]


def test_identify_after_sub_is_refused(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client:
        client.subscribe("identify-late", "c")
        with pytest.raises(WireError, match=r"^E_INVALID cannot IDENTIFY in current state$"):
            client.identify()

        assert b"" == client.read_to_end()


def test_stats_show_the_identify_fields_of_a_client(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client:
        client.identify(
            client_id="me", hostname="host.example", user_agent="test/1", sample_rate=5,
            topology_zone="z", topology_region="r",
        )  # fmt: skip
        client.subscribe("identify-stats", "c", rdy=3)

        shown = nsqd.stats("identify-stats", "c")["clients"][0]

    expected = {
        "client_id": "me",
        "hostname": "host.example",
        "user_agent": "test/1",
        "version": "V2",
        "state": 3,
        "ready_count": 3,
        "sample_rate": 5,
        "topology_zone": "z",
        "topology_region": "r",
    }
    assert expected == {key: shown[key] for key in expected}


# Heartbeats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("subscribed", [True, False], ids=["consumer", "producer"])
def test_a_silent_client_gets_a_heartbeat_and_is_then_closed(
    nsqd: NsqdProcess, *, subscribed: bool
) -> None:
    with nsqd.connect() as client:
        began = time.monotonic()
        client.identify(heartbeat_interval=1000)
        if subscribed:
            client.subscribe("heartbeat", "c")

        # The loop's clock has a resolution of milliseconds.
        assert HEARTBEAT == client.next_frame()
        assert 0.99 <= time.monotonic() - began
        # The second heartbeat is due at the same time as the close.
        assert client.read_to_end() in (b"", frames.HEARTBEAT)
        assert 1.99 <= time.monotonic() - began


def test_a_client_that_stops_inside_a_body_gets_an_error(nsqd: NsqdProcess) -> None:
    missing = ProtocolError("E_BAD_MESSAGE", "PUB failed to read message body")
    with nsqd.connect() as client:
        client.identify(heartbeat_interval=1000)
        client.send(commands.pub("heartbeat", b"body")[:-1])

        assert HEARTBEAT == client.next_frame()
        # The second heartbeat is due at the same time.
        assert frames.error(missing) == client.read_to_end().removeprefix(frames.HEARTBEAT)


def test_answered_heartbeats_keep_a_connection() -> None:
    with run_nsqd() as nsqd:
        client = nsqd.connect()
        client.identify(heartbeat_interval=2000)
        for _ in range(3):
            assert HEARTBEAT == client.next_frame()
            client.send(commands.nop())

        assert b"OK" == client.call(commands.pub("t", b"x"))


def test_client_may_do_without_heartbeats(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client, nsqd.connect() as reference:
        client.identify(heartbeat_interval=-1)
        reference.identify(heartbeat_interval=1000)
        reference.next_frame()
        reference.read_to_end()

        assert b"OK" == client.call(commands.pub("heartbeat", b"x"))


def test_second_identify_does_not_change_the_heartbeat(nsqd: NsqdProcess) -> None:
    """As in NSQ: the timers of the first IDENTIFY stay."""
    with nsqd.connect() as client:
        client.identify(heartbeat_interval=2000)
        client.identify(heartbeat_interval=60_000)

        for _ in range(2):
            assert HEARTBEAT == client.next_frame(seconds=40)
            client.send(commands.nop())
