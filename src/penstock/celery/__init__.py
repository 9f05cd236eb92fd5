"""Celery on NSQ: a transport for kombu, the messaging library below Celery.

    app = Celery("shop", broker="nsq://127.0.0.1:4150")

Installing Penstock registers the transport; no import is needed (see `registration`). How Celery's
concepts map to NSQ is in docs/how_to/celery.md.

A queue is a topic, consumed by one channel. A blocking producer publishes; a publish returns when
nsqd has stored the message. A separate thread consumes (`receiver`), so that heartbeats and touches
continue while a task blocks the loop of the worker.
"""

__all__: list[str] = []
