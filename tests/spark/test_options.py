"""Options are validated before the first request."""

import json
import pickle

import pytest

from penstock.common.errors import ConfigError
from pyspark_nsq.offsets import EARLIEST, LATEST, AtTime, LogKey, from_json, to_json
from pyspark_nsq.options import SinkOptions, SourceOptions

HERE = {"nsqd": "127.0.0.1:4151", "topic": "orders"}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": "orders"}, "nsqd or lookupd is required"),
        ({"nsqd": "127.0.0.1", "topic": "orders"}, "invalid HTTP address"),
        ({"nsqd": "tcp://127.0.0.1:4150", "topic": "orders"}, "invalid HTTP address"),
        ({"nsqd": "127.0.0.1:4151"}, "one of topic and topicPattern"),
        ({**HERE, "topicPattern": "o.*"}, "one of topic and topicPattern"),
        ({"nsqd": "127.0.0.1:4151", "topicPattern": "("}, "topicPattern '\\('"),
        ({**HERE, "topic": "a b"}, "topic 'a b' is not a valid name"),
        ({**HERE, "topic": "a#ephemeral"}, "a#ephemeral is ephemeral and has no history"),
        ({**HERE, "failOnDatLoss": "true"}, "unknown option 'failondatloss'"),
        ({**HERE, "failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
        ({**HERE, "maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger must be a positive"),
        ({**HERE, "nodeTimeout": "soon"}, "nodeTimeout must be a duration such as 10s"),
        ({**HERE, "startingOffsets": "{"}, "startingOffsets must be earliest, latest"),
        ({**HERE, "startingOffsets": '{"orders": 5}'}, "offsets must be"),
        ({**HERE, "startingOffsets": '{"orders": {"1024": 5}}'}, "'1024' is not a log id"),
        ({**HERE, "startingOffsets": '{"orders": {"1": -3}}'}, "-3 is not a valid offset"),
        ({**HERE, "startingOffsets": "latest", "startingTimestamp": "5"}, "exclude each other"),
        ({**HERE, "startingTimestamp": "yesterday"}, "milliseconds or ISO 8601"),
        ({**HERE, "endingOffsets": "earliest"}, "endingOffsets must not be earliest"),
        ({**HERE, "mode": "queue"}, "mode must be history or channel"),
        ({**HERE, "mode": "channel"}, "mode=channel requires exactly one topic"),
        ({**HERE, "tlsCert": "cert.pem"}, "tlsCert and tlsKey must be given together"),
    ],
)
def test_invalid_options_are_rejected(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        SourceOptions.parse(given, streaming=True)


def test_options_can_be_pickled_and_hide_secrets() -> None:
    given = {
        "NSQD": "127.0.0.1:4151, https://[::1]:4152",
        "Topic": "a,b,a",
        "httpToken": "hush",
        "authSecret": "hush",
        "startingOffsets": '{"a": {"7": -1}}',
        "endingTimestamp": "2026-01-01T00:00:00+01:00",
    }

    options = SourceOptions.parse(given, streaming=False)

    assert options == pickle.loads(pickle.dumps(options))
    assert "hush" not in repr(options)
    assert ("http://127.0.0.1:4151", "https://[::1]:4152") == options.access.nsqds
    assert ("a", "b") == options.topics.names
    assert {LogKey("a", "7"): LATEST} == options.starting
    assert AtTime(1_767_222_000_000_000_000) == options.ending


def test_a_stream_starts_at_the_latest_and_a_batch_at_the_earliest_messages() -> None:
    assert LATEST == SourceOptions.parse(HERE, streaming=True).starting
    assert EARLIEST == SourceOptions.parse(HERE, streaming=False).starting


def test_json_of_offsets_is_sorted() -> None:
    first, second = "0" * 32, "f" * 32
    nested = {"b": {second: 1, first: 2}, "a": {first: 7}}

    expected = {"a": {first: 7}, "b": {first: 2, second: 1}}
    assert json.dumps(expected) == json.dumps(to_json(from_json(nested)))


def test_the_topic_option_of_the_sink_is_optional() -> None:
    assert "" == SinkOptions.parse({"nsqd": "127.0.0.1:4151"}).topic
