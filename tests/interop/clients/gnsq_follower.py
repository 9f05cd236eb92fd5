"""gnsq, following a topic wherever nsqlookupds say that it is: see test_discovery.py."""

import sys

import gnsq


class Follower(gnsq.Consumer):  # type: ignore[misc]  # gnsq has no types
    def _redistribute_ready_state(self) -> None:
        # gnsq ends its own loop over RDY if that comes to a connection which is just being made
        # and takes what it could not send for sent: it would never ask that node for a message.
        try:
            super()._redistribute_ready_state()
        except AttributeError:
            for connection in self._connections:
                if not connection.is_connected:
                    connection.ready_count = 0


def handle(_consumer: gnsq.Consumer, message: gnsq.Message) -> None:
    print(message.body.decode(), flush=True)


if __name__ == "__main__":
    topic, channel, *lookupds = sys.argv[1:]
    Follower(
        topic,
        channel,
        message_handler=handle,
        lookupd_http_addresses=lookupds,
        lookupd_poll_interval=1,
        max_in_flight=50,
    ).start()
