"""gnsq, following a topic wherever nsqlookupds say that it is: see test_discovery.py."""

import sys

import gnsq


def handle(_consumer: gnsq.Consumer, message: gnsq.Message) -> None:
    print(message.body.decode(), flush=True)


if __name__ == "__main__":
    topic, channel, *lookupds = sys.argv[1:]
    gnsq.Consumer(
        topic,
        channel,
        message_handler=handle,
        lookupd_http_addresses=lookupds,
        lookupd_poll_interval=1,
        max_in_flight=50,
    ).start()
