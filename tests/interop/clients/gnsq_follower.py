"""Consume a topic with gnsq from the nodes that nsqlookupd lists; used by test_discovery.py."""

import sys

import gnsq


class Follower(gnsq.Consumer):  # type: ignore[misc]  # gnsq has no types
    def _redistribute_ready_state(self) -> None:
        # If one connection is still being opened, gnsq stops sending RDY to the others, and regards
        # the RDY of that connection as sent. So the node would never send a message.
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
