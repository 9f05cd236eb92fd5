"""The URL and the options of a broker."""

import ssl
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.celery.settings import ephemeral_name, masked, nsq_name, settings_of
from penstock.common.errors import ConfigError
from penstock.common.names import is_ephemeral, is_valid


@pytest.mark.parametrize(
    ("urls", "nsqds", "lookupds"),
    [
        (["nsq://10.0.0.1:4150"], ["10.0.0.1:4150"], []),
        (["nsq://10.0.0.1/"], ["10.0.0.1:4150"], []),
        (["nsq://"], ["127.0.0.1:4150"], []),
        (["nsq://[::1]:5150"], ["[::1]:5150"], []),
        (["nsq://a:1", "nsq://b:2", "nsq://a:1"], ["a:1", "b:2"], []),
        (["nsq+lookupd://10.0.0.1:4161"], [], ["http://10.0.0.1:4161"]),
        (["nsqs+lookupd://a", "nsqs://b"], ["b:4150"], ["http://a:4161"]),
    ],
)
def test_a_url_contains_the_addresses_of_nsqds_or_lookupds(
    urls: list[str], nsqds: list[str], lookupds: list[str]
) -> None:
    settings = settings_of(urls)

    assert (nsqds, lookupds) == (settings.nsqds, settings.lookupds)


def test_lookupds_may_be_options() -> None:
    options = {"lookupd_http_addresses": ["a:4161", "b:4161"]}

    assert [] == settings_of(["nsq://"], options=options).nsqds
    assert ["c:4150"] == settings_of(["nsq://c"], options=options).nsqds
    assert ["http://a:4161", "http://b:4161"] == settings_of(["nsq://"], options=options).lookupds


def test_the_password_is_the_secret_for_auth() -> None:
    assert "s/cret" == settings_of(["nsq://:s%2Fcret@a"]).config.auth_secret


@pytest.mark.parametrize(
    ("url", "use_ssl", "expected"),
    [
        ("nsq://a", None, (False, "", False)),
        ("nsqs://a", None, (True, "", False)),
        ("nsq://a", True, (True, "", False)),
        ("nsq://a", {"ca_certs": "ca.pem"}, (True, "ca.pem", False)),
        ("nsqs://a", {"ssl_ca_certs": "ca.pem"}, (True, "ca.pem", False)),
        ("nsqs://a", {"cert_reqs": ssl.CERT_NONE}, (True, "", True)),
        ("nsqs://a", {"ssl_cert_reqs": "none"}, (True, "", True)),
    ],
)
def test_tls_is_enabled_by_the_scheme_or_by_broker_use_ssl(
    url: str, use_ssl: bool | Mapping[str, Any] | None, expected: tuple[bool, str, bool]
) -> None:
    config = settings_of([url], use_ssl=use_ssl).config

    assert expected == (config.tls_v1, config.tls_root_ca_file, config.tls_insecure_skip_verify)


def test_options_of_the_client_and_of_the_transport_are_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"snappy": True, "channel": "workers", "max_retries": 3, "colour": "red"}
    settings = settings_of(["nsq://a"], options=options)

    assert (True, "workers") == (settings.config.snappy, settings.channel)
    assert ["broker_transport_options: unknown option colour"] == caplog.messages


@pytest.mark.parametrize(
    ("urls", "options"),
    [
        (["nsq://a/vhost"], {}),
        (["nsq://a?snappy=1"], {}),
        (["nsq://a:port"], {}),
        (["redis://a"], {}),
        (["nsq://a", "nsqs://b"], {}),
        (["nsq://:one@a", "nsq://:two@b"], {}),
        (["nsq://a"], {"channel": "no name"}),
        (["nsq://a"], {"max_defer": 0}),
        (["nsq://a"], {"publish_timeout": -1}),
    ],
)
def test_an_invalid_configuration_is_refused(urls: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        settings_of(urls, options=options)


def test_a_password_is_masked() -> None:
    assert "nsq://:**@a:4150" == masked("nsq://:secret@a:4150", "**")
    assert "nsq://a:4150" == masked("nsq://a:4150", "**")
    with pytest.raises(ConfigError, match=r"nsq://:\*\*@a:port"):
        settings_of(["nsq://:secret@a:port"])


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery"),
        ("low-priority_v1.2", "low-priority_v1.2"),
        ("celery@web1.celery.pidbox", "celery-x40web1.celery.pidbox"),
        ("a-x40b", "a-x2dx40b"),
        ("ü", "-xc3-xbc"),
        ("orders#ephemeral", "orders-x23ephemeral"),
        ("q" * 65, "q" * 46 + "-h2b6c3f7f12b1b12f"),
    ],
)
def test_a_topic_name_resembles_the_queue_name(queue: str, topic: str) -> None:
    assert topic == nsq_name(queue)


@given(st.text(min_size=1, max_size=100))
def test_every_queue_name_becomes_a_valid_topic_name(name: str) -> None:
    assert is_valid(nsq_name(name))
    assert is_valid(ephemeral_name(name))
    assert is_ephemeral(ephemeral_name(name))


names = st.text(alphabet="-x4062d@a", min_size=1, max_size=12)


@given(names, names)
def test_different_queue_names_become_different_topic_names(one: str, other: str) -> None:
    assert (one == other) == (nsq_name(one) == nsq_name(other))
