import pickle
from typing import Any

import pytest

from penstock.client import ClientConfig
from penstock.common.errors import ConfigError


def test_the_options_of_the_go_client_are_understood() -> None:
    options = [
        "max_in_flight,100",
        "max-attempts,3",
        "snappy",
        "tls-insecure-skip-verify,true",
        "skip_lookupd_authorization,false",
        "msg_timeout,1m30s",
        "lookupd_poll_jitter,0.5",
        "backoff_strategy,full_jitter",
        "auth_secret,a,b",
    ]

    expected = ClientConfig(
        max_in_flight=100,
        max_attempts=3,
        snappy=True,
        tls_insecure_skip_verify=True,
        msg_timeout=90.0,
        lookupd_poll_jitter=0.5,
        backoff_strategy="full_jitter",
        auth_secret="a,b",
    )
    assert expected == ClientConfig().with_options(options)


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("no_such,1", "unknown option 'no_such'"),
        ("max_in_flight,many", "invalid value of option max_in_flight: 'many'"),
        ("msg_timeout,90", "invalid value of option msg_timeout: '90'"),
        ("snappy,maybe", "invalid value of option snappy: 'maybe'"),
        ("sample_rate,100", "sample_rate must be a percentage from 0 to 99, not 100"),
    ],
)
def test_an_unknown_option_is_an_error(option: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ClientConfig().with_options([option])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"max_in_flight": 0}, "max_in_flight must be positive"),
        ({"dial_timeout": -1.0}, "dial_timeout must not be negative: -1.0"),
        ({"snappy": True, "deflate": True}, "cannot both be enabled"),
        ({"backoff_strategy": "none"}, "exponential or full_jitter"),
        ({"tls_min_version": "9"}, "tls1.0, tls1.1, tls1.2 or tls1.3, not '9'"),
        ({"heartbeat_interval": 60.0}, "longer than heartbeat_interval"),
        ({"tls_cert": "cert.pem"}, "tls_cert and tls_key must be set together"),
    ],
)
def test_invalid_values_are_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ClientConfig(**fields)


def test_it_can_be_pickled() -> None:
    config = ClientConfig(max_in_flight=7, tls_v1=True)

    assert config == pickle.loads(pickle.dumps(config))
