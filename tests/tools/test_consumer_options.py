"""`--consumer-opt` accepts the options of NSQ's Go client."""

from typing import Any

import pytest

from penstock.common.errors import ConfigError, UsageError
from penstock.common.options import parse_flags
from penstock.tools.consumer_options import ConsumerOptions, check_source, consumer_config


def config(*given: str, **options: Any) -> Any:
    return consumer_config("nsq_tail", ConsumerOptions(consumer_opt=given, **options))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("dial_timeout,2s", 2.0),
        ("read_timeout,61s", 61.0),
        ("write_timeout,2s", 2.0),
        ("local_addr,127.0.0.1", "127.0.0.1"),
        ("lookupd_poll_interval,5s", 5.0),
        ("lookupd_poll_jitter,0.5", 0.5),
        ("lookupd_poll_timeout,5s", 5.0),
        ("max_requeue_delay,5m", 300.0),
        ("default_requeue_delay,1m30s", 90.0),
        ("backoff_strategy,full_jitter", "full_jitter"),
        ("max_backoff_duration,0", 0.0),
        ("backoff_multiplier,500ms", 0.5),
        ("max_attempts,0", 0),
        ("low_rdy_idle_timeout,1s", 1.0),
        ("low_rdy_timeout,1s", 1.0),
        ("rdy_redistribute_interval,1s", 1.0),
        ("client_id,me", "me"),
        ("hostname,here", "here"),
        ("user_agent,us, them", "us, them"),
        ("heartbeat_interval,10s", 10.0),
        ("sample_rate,10", 10),
        ("tls_v1,true", True),
        ("tls_v1", True),
        ("tls-v1", True),
        ("tls_v1,false", False),
        ("tls_root_ca_file,/x", "/x"),
        ("tls-insecure-skip-verify", True),
        ("tls_min_version,tls1.2", "tls1.2"),
        ("deflate", True),
        ("deflate_level,9", 9),
        ("snappy", True),
        ("output_buffer_size,1", 1),
        ("output_buffer_timeout,1s", 1.0),
        ("msg_timeout,5s", 5.0),
        ("auth_secret,a,b", "a,b"),
        ("skip_lookupd_authorization", True),
    ],
)
def test_every_option_of_nsqs_go_client_is_known(given: str, expected: object) -> None:
    name = given.partition(",")[0].replace("-", "_")

    assert expected == getattr(config(given), name)


def test_a_dedicated_flag_overrides_consumer_opt() -> None:
    assert 7 == config("max_in_flight,99", max_in_flight=7).max_in_flight


def test_the_user_agent_names_the_tool() -> None:
    assert "nsq_tail/1.3.0 penstock/0.1.0" == config().user_agent


@pytest.mark.parametrize("given", ["", "frob", "frob,1", "max_attempts", "dial_timeout,x"])
def test_an_unknown_client_option_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="for flag -consumer-opt: "):
        parse_flags(ConsumerOptions, [f"--consumer-opt={given}"])


def test_conflicting_options_are_refused() -> None:
    options = ConsumerOptions(
        nsqd_tcp_address=("127.0.0.1:4150",), consumer_opt=("snappy", "deflate")
    )

    with pytest.raises(ConfigError, match=r"^--consumer-opt: snappy and deflate cannot both"):
        check_source(options)


def test_an_option_is_not_compared_with_others_before_all_are_read() -> None:
    flags = ["--consumer-opt=heartbeat_interval,70s", "--consumer-opt=read_timeout,100s"]
    options = ConsumerOptions(**parse_flags(ConsumerOptions, flags).values)

    assert 70.0 == consumer_config("nsq_tail", options).heartbeat_interval
