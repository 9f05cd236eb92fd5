"""IDENTIFY: parsing as Go's JSON decoder does, and negotiation."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import ProtocolError
from penstock.protocol.identify import (
    IdentifyRequest,
    Negotiated,
    ServerOffer,
    negotiate,
    parse_identify,
)

NOT_JSON = "E_BAD_BODY IDENTIFY failed to decode JSON body"

# Parsing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", IdentifyRequest()),
        (b"null", IdentifyRequest()),
        (b" \t\r\n{ } \n", IdentifyRequest()),
        (b'{"client_id":"me"}', IdentifyRequest(client_id="me")),
        (b'{"sample_rate":-0}', IdentifyRequest(sample_rate=0)),
        (b'{"heartbeat_interval":-1}', IdentifyRequest(heartbeat_interval=-1)),
        (
            b'{"msg_timeout":9223372036854775807}',
            IdentifyRequest(msg_timeout=2**63 - 1),
        ),
        (
            b'{"msg_timeout":-9223372036854775808}',
            IdentifyRequest(msg_timeout=-(2**63)),
        ),
        (b'{"sample_rate":2147483647}', IdentifyRequest(sample_rate=2**31 - 1)),
        # Names match in any case, with Go's case folding.
        (b'{"Client_ID":"me","TLS_V1":true}', IdentifyRequest(client_id="me", tls_v1=True)),
        ('{"\u017fnappy":true}'.encode(), IdentifyRequest(snappy=True)),
        ('{"de\ufb02ate":true,"deflate ":1}'.encode(), IdentifyRequest()),
        # The last of two values counts, null is ignored, and unknown fields may contain anything.
        (b'{"client_id":"a","CLIENT_ID":"b"}', IdentifyRequest(client_id="b")),
        (b'{"client_id":"a","client_id":null}', IdentifyRequest(client_id="a")),
        (b'{"deflate":null,"msg_timeout":null,"hostname":null}', IdentifyRequest()),
        (b'{"short_id":1.5e300,"x":[{"y":[]},null,"z"],"":{}}', IdentifyRequest()),
        (b'{"unknown":' + b"9" * 5000 + b"}", IdentifyRequest()),
        (b'{"unknown":1e999999999}', IdentifyRequest()),
        # Invalid UTF-8 in a string is replaced byte by byte.
        (b'{"hostname":"\\u00e9\\n\\"\\u0000"}', IdentifyRequest(hostname='é\n"\x00')),
        (b'{"hostname":"\\ud83d\\ude00"}', IdentifyRequest(hostname="\U0001f600")),
        (b'{"hostname":"\\ud83d!"}', IdentifyRequest(hostname="\ufffd!")),
        (b'{"hostname":"a\xffb\xe2\x82"}', IdentifyRequest(hostname="a\ufffdb\ufffd\ufffd")),
    ],
)
def test_a_body_is_read_as_go_reads_it(body: bytes, expected: IdentifyRequest) -> None:
    assert expected == parse_identify(body)


def test_every_field_is_read() -> None:
    request = IdentifyRequest(
        client_id="id",
        hostname="host",
        user_agent="agent/1",
        feature_negotiation=True,
        heartbeat_interval=5000,
        output_buffer_size=128,
        output_buffer_timeout=50,
        sample_rate=10,
        msg_timeout=2000,
        tls_v1=True,
        snappy=True,
        deflate=True,
        deflate_level=3,
        topology_region="region",
        topology_zone="zone",
    )
    fields = dataclasses.asdict(request)

    assert not [name for name, value in fields.items() if not value]
    assert request == parse_identify(json.dumps(fields).encode())


STRINGS = ["client_id", "hostname", "user_agent", "topology_region", "topology_zone"]
BOOLS = ["feature_negotiation", "tls_v1", "snappy", "deflate"]
INTS = [
    "heartbeat_interval",
    "output_buffer_size",
    "output_buffer_timeout",
    "sample_rate",
    "msg_timeout",
    "deflate_level",
]
WRONG = [
    *((name, value) for name in STRINGS for value in ("1", "true", "[]", "{}", "1.5")),
    *((name, value) for name in BOOLS for value in ("1", "0", '"true"', "[]", "{}")),
    *(
        (name, value)
        for name in INTS
        for value in ("1000.5", "1000.0", "1e3", '"1000"', "true", "false", "[]", "{}", "1" * 20)
    ),
    ("sample_rate", "2147483648"),
    ("sample_rate", "-2147483649"),
    ("msg_timeout", "9223372036854775808"),
    ("msg_timeout", "-9223372036854775809"),
]


def test_every_field_has_a_type() -> None:
    names = {field.name for field in dataclasses.fields(IdentifyRequest)}

    assert names == {*STRINGS, *BOOLS, *INTS}


def assert_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_identify(body)

    assert NOT_JSON == str(caught.value)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: str) -> None:
    assert_refused(f'{{"{name}":{value}}}'.encode())


def test_the_nesting_of_json_is_limited() -> None:
    assert IdentifyRequest() == parse_identify(b'{"x":' + b"[" * 500 + b"]" * 500 + b"}")

    assert_refused(b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}")


def test_a_wrong_value_is_refused_even_if_a_later_one_is_right() -> None:
    assert_refused(b'{"client_id":1,"client_id":"me"}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"1",
        b"true",
        b"{",
        b"{}{}",
        b"{} x",
        b"null null",
        b'{"client_id":"me",}',
        b"{'client_id':1}",
        b'{"client_id"}',
        b'{"x":NaN}',
        b'{"x":Infinity}',
        b'{"x":-Infinity}',
        b'{"x":01}',
        b'{"x":+1}',
        b'{"x":.5}',
        b'{"client_id":"a\nb"}',
        b'{"client_id":"\\x41"}',
        b'{"client_id":"\\u12"}',
        b"\xef\xbb\xbf{}",
        b"\xff",
        b"{\xff}",
        b'{"x":' + b"[" * 100_000,
        b'{"x":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_json_that_is_not_an_object_is_refused(body: bytes) -> None:
    assert_refused(body)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)
requests = st.dictionaries(st.sampled_from([*STRINGS, *BOOLS, *INTS]), json_values)


@given(st.one_of(st.binary(), json_values.map(json.dumps).map(str.encode)))
def test_no_body_raises_anything_but_a_protocol_error(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        parse_identify(body)


# Negotiating --------------------------------------------------------------------------------------

OFFER = ServerOffer()
COMPLETE_OFFER = ServerOffer(tls=True, snappy=True, deflate=True)


def agreed(fields: Mapping[str, object], offer: ServerOffer = COMPLETE_OFFER) -> Negotiated:
    request = IdentifyRequest(**{"feature_negotiation": True, **fields})  # type: ignore[arg-type]
    return negotiate(request, offer)[0]


def test_the_response_is_these_bytes() -> None:
    _, response = negotiate(IdentifyRequest(feature_negotiation=True), COMPLETE_OFFER)

    assert response == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
        b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
        b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
        b'"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
    )


def test_the_response_reports_the_granted_features_and_the_server() -> None:
    request = IdentifyRequest(
        feature_negotiation=True,
        msg_timeout=2000,
        tls_v1=True,
        deflate=True,
        deflate_level=3,
        sample_rate=42,
        output_buffer_size=64,
        output_buffer_timeout=25,
        topology_region="client's",
        topology_zone="client's",
    )
    offer = ServerOffer(
        version="9.9",
        max_rdy_count=7,
        max_msg_timeout_ms=5000,
        tls=True,
        deflate=True,
        max_deflate_level=5,
        auth_required=True,
        topology_region="<eu&\u2028>",
        topology_zone="é",
    )
    _, response = negotiate(request, offer)

    assert response.decode() == (
        '{"max_rdy_count":7,"version":"9.9","max_msg_timeout":5000,"msg_timeout":2000,'
        '"tls_v1":true,"deflate":true,"deflate_level":3,"max_deflate_level":5,"snappy":false,'
        '"sample_rate":42,"auth_required":true,"output_buffer_size":64,"output_buffer_timeout":25,'
        '"topology_region":"\\u003ceu\\u0026\\u2028\\u003e","topology_zone":"é"}'
    )


def test_the_result_contains_the_identity_of_the_client() -> None:
    request = IdentifyRequest("id", "host", "a/1", topology_region="r", topology_zone="z")
    result, _ = negotiate(request, OFFER)

    assert ("id", "host", "a/1") == (result.client_id, result.hostname, result.user_agent)
    assert ("r", "z") == (result.topology_region, result.topology_zone)


def test_without_feature_negotiation_the_answer_is_ok_and_no_feature_is_granted() -> None:
    request = IdentifyRequest(
        tls_v1=True, snappy=True, deflate=True, heartbeat_interval=1000, sample_rate=5
    )
    result, response = negotiate(request, COMPLETE_OFFER)

    assert b"OK" == response
    assert (False, False, False) == (result.tls, result.snappy, result.deflate)
    assert (1000, 5) == (result.heartbeat_interval_ms, result.sample_rate)


IN_RANGE = [
    ("heartbeat_interval", 0, "heartbeat_interval_ms", 30_000),
    ("heartbeat_interval", -1, "heartbeat_interval_ms", None),
    ("heartbeat_interval", 1000, "heartbeat_interval_ms", 1000),
    ("heartbeat_interval", 60_000, "heartbeat_interval_ms", 60_000),
    ("output_buffer_size", 0, "output_buffer_size", 16384),
    ("output_buffer_size", -1, "output_buffer_size", 1),
    ("output_buffer_size", -1, "output_buffer_timeout_ms", 0),
    ("output_buffer_size", 64, "output_buffer_size", 64),
    ("output_buffer_size", 64, "output_buffer_timeout_ms", 250),
    ("output_buffer_size", 65536, "output_buffer_size", 65536),
    ("output_buffer_timeout", 0, "output_buffer_timeout_ms", 250),
    ("output_buffer_timeout", -1, "output_buffer_timeout_ms", 0),
    ("output_buffer_timeout", 25, "output_buffer_timeout_ms", 25),
    ("output_buffer_timeout", 30_000, "output_buffer_timeout_ms", 30_000),
    ("sample_rate", 0, "sample_rate", 0),
    ("sample_rate", 99, "sample_rate", 99),
    ("msg_timeout", 0, "msg_timeout_ms", 60_000),
    ("msg_timeout", 1000, "msg_timeout_ms", 1000),
    ("msg_timeout", 900_000, "msg_timeout_ms", 900_000),
    ("deflate", True, "deflate_level", 6),
    ("deflate_level", -5, "deflate_level", 6),
    ("deflate_level", 0, "deflate_level", 6),
]


@pytest.mark.parametrize("feature_negotiation", [True, False])
@pytest.mark.parametrize(("field", "asked", "attribute", "expected"), IN_RANGE)
def test_a_value_in_range_is_granted(
    field: str, asked: int, attribute: str, expected: int | None, *, feature_negotiation: bool
) -> None:
    result = agreed({"feature_negotiation": feature_negotiation, field: asked})

    assert expected == getattr(result, attribute)


OUT_OF_RANGE = [
    ("heartbeat_interval", "heartbeat interval", [-2, 1, 999, 60_001]),
    ("output_buffer_size", "output buffer size", [-2, 1, 63, 65537]),
    ("output_buffer_timeout", "output buffer timeout", [-2, 1, 24, 30_001]),
    ("sample_rate", "sample rate", [-1, 100]),
    ("msg_timeout", "msg timeout", [-1, 1, 999, 900_001]),
]


@pytest.mark.parametrize("feature_negotiation", [True, False])
@pytest.mark.parametrize(
    ("field", "noun", "asked"),
    [(field, noun, value) for field, noun, values in OUT_OF_RANGE for value in values],
)
def test_a_value_out_of_range_is_refused(
    field: str, noun: str, asked: int, *, feature_negotiation: bool
) -> None:
    with pytest.raises(ProtocolError) as caught:
        agreed({"feature_negotiation": feature_negotiation, field: asked})

    assert f"E_BAD_BODY IDENTIFY {noun} ({asked}) is invalid" == str(caught.value)


def test_the_first_of_several_errors_is_reported() -> None:
    order = ["heartbeat_interval", "output_buffer_timeout", "output_buffer_size", "sample_rate"]
    mistakes = dict.fromkeys([*order, "msg_timeout"], -7)
    for field in order:
        with pytest.raises(ProtocolError, match=field.replace("_", " ")):
            agreed(mistakes)
        del mistakes[field]


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(
    ("field", "feature"), [("tls_v1", "tls"), ("snappy", "snappy"), ("deflate", "deflate")]
)
def test_a_feature_is_granted_if_it_is_requested_and_offered(
    field: str, feature: str, *, asked: bool, offered: bool
) -> None:
    offer = dataclasses.replace(OFFER, **{feature: offered})  # type: ignore[arg-type]
    result = agreed({field: asked}, offer)

    assert (asked and offered) is getattr(result, feature)


@pytest.mark.parametrize(
    ("asked", "offered_max", "granted"), [(0, 6, 6), (1, 6, 1), (6, 6, 6), (9, 6, 6), (9, 9, 9)]
)
def test_the_deflate_level_is_limited_by_the_server(
    asked: int, offered_max: int, granted: int
) -> None:
    offer = dataclasses.replace(COMPLETE_OFFER, max_deflate_level=offered_max)

    assert granted == agreed({"deflate": True, "deflate_level": asked}, offer).deflate_level


def test_the_default_deflate_level_is_limited_by_the_server() -> None:
    offer = dataclasses.replace(COMPLETE_OFFER, max_deflate_level=2)

    assert 2 == agreed({}, offer).deflate_level
    assert 2 == agreed({"deflate_level": 9}, offer).deflate_level


def test_two_compressions_at_once_are_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        agreed({"snappy": True, "deflate": True})

    text = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert text == str(caught.value)


def test_two_compressions_may_be_requested_if_one_is_not_offered() -> None:
    result = agreed({"snappy": True, "deflate": True}, ServerOffer(snappy=True))

    assert (True, False) == (result.snappy, result.deflate)


def test_a_second_identify_keeps_values_that_it_does_not_contain() -> None:
    first, _ = negotiate(
        IdentifyRequest(
            client_id="first",
            heartbeat_interval=-1,
            output_buffer_size=128,
            output_buffer_timeout=100,
            sample_rate=10,
            msg_timeout=2000,
        ),
        OFFER,
    )
    second, _ = negotiate(IdentifyRequest(), OFFER, first)

    assert dataclasses.replace(first, client_id="", sample_rate=0) == second


def test_before_identify_the_defaults_of_the_server_apply() -> None:
    offer = ServerOffer(heartbeat_interval_ms=5000, msg_timeout_ms=7000, output_buffer_size=99)

    expected = Negotiated(
        heartbeat_interval_ms=5000,
        msg_timeout_ms=7000,
        output_buffer_size=99,
        output_buffer_timeout_ms=250,
        sample_rate=0,
        deflate_level=6,
    )
    assert expected == offer.defaults()


@given(requests)
def test_any_request_is_answered_in_json_or_refused(fields: dict[str, object]) -> None:
    body = json.dumps({**fields, "feature_negotiation": True}).encode()
    try:
        _, response = negotiate(parse_identify(body), COMPLETE_OFFER)
    except ProtocolError:
        return
    assert 15 == len(json.loads(response))
