"""What is wrong with options is said before anything is asked."""

import pickle

import pytest

from penstock.common.errors import ConfigError
from pyspark_nsq.offsets import EARLIEST, LATEST, AtTime, TopicNode, from_json, to_json
from pyspark_nsq.options import SinkOptions, SourceOptions

HERE = {"nsqd": "127.0.0.1:4151", "topic": "orders"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": "orders"}, "nsqd or lookupd has to be given"),
        ({"nsqd": "127.0.0.1", "topic": "orders"}, "not the address of an HTTP API"),
        ({"nsqd": "tcp://127.0.0.1:4150", "topic": "orders"}, "not the address of an HTTP API"),
        ({"nsqd": "127.0.0.1:4151"}, "one of topic and topicPattern"),
        ({**HERE, "topicPattern": "o.*"}, "one of topic and topicPattern"),
        ({"nsqd": "127.0.0.1:4151", "topicPattern": "("}, "topicPattern '\\('"),
        ({**HERE, "topic": "a b"}, "topic 'a b' is not a valid name"),
        ({**HERE, "topic": "a#ephemeral"}, "a#ephemeral is in memory only"),
        ({**HERE, "failOnDatLoss": "true"}, "unknown option 'failondatloss'"),
        ({**HERE, "failOnDataLoss": "yes"}, "failOnDataLoss is true or false"),
        ({**HERE, "maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger is a positive number"),
        ({**HERE, "nodeTimeout": "soon"}, "nodeTimeout is a duration like 10s"),
        ({**HERE, "startingOffsets": "{"}, "startingOffsets are earliest, latest or JSON"),
        ({**HERE, "startingOffsets": '{"orders": 5}'}, "offsets are"),
        ({**HERE, "startingOffsets": '{"orders": {"1024": 5}}'}, "'1024' is no node id"),
        ({**HERE, "startingOffsets": '{"orders": {"1": -3}}'}, "-3 is no offset"),
        ({**HERE, "startingOffsets": "latest", "startingTimestamp": "5"}, "only one of"),
        ({**HERE, "startingTimestamp": "yesterday"}, "milliseconds or ISO 8601"),
        ({**HERE, "endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({**HERE, "mode": "queue"}, "mode is history or channel"),
        ({**HERE, "mode": "channel"}, "mode=channel needs one topic and a channel"),
        ({**HERE, "tlsCert": "cert.pem"}, "tlsCert and tlsKey go together"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SourceOptions.parse(given, streaming=True)


def test_options_travel_to_the_executors_without_showing_secrets() -> None:
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
    assert {TopicNode("a", 7): LATEST} == options.starting
    assert AtTime(1_767_222_000_000_000_000) == options.ending


def test_a_stream_begins_at_the_end_and_a_table_at_the_beginning() -> None:
    assert LATEST == SourceOptions.parse(HERE, streaming=True).starting
    assert EARLIEST == SourceOptions.parse(HERE, streaming=False).starting


def test_offsets_have_one_text() -> None:
    nested = {"a": {"2": 7}, "b": {"10": 1, "9": 2}}

    assert '{"a": {"2": 7}, "b": {"9": 2, "10": 1}}' == str(to_json(from_json(nested))).replace(
        "'", '"'
    )


def test_a_sink_may_leave_the_topic_to_the_rows() -> None:
    assert "" == SinkOptions.parse({"nsqd": "127.0.0.1:4151"}).topic
