"""Consume a topic with pynsq from the nodes that nsqlookupd lists; used by test_discovery.py."""

import sys

import nsq


def handle(message: nsq.Message) -> bool:
    print(message.body.decode(), flush=True)
    return True


if __name__ == "__main__":
    topic, channel, *lookupds = sys.argv[1:]
    nsq.Reader(
        topic,
        channel,
        message_handler=handle,
        lookupd_http_addresses=lookupds,
        lookupd_poll_interval=1,
        max_in_flight=50,
    )
    nsq.run()
