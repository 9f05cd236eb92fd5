"""Celery on NSQ: a transport for kombu, the messaging library below Celery.

    app = Celery("shop", broker="nsq://127.0.0.1:4150")

Nothing here has to be imported: installing Penstock registers it (see `registration`). What maps to
what, and what does not, is in docs/how_to/celery.md.

A queue is a topic, consumed by one channel. Publishing is done by a blocking producer, and has
happened once nsqd has stored the message. Consuming is done by a thread of its own (`receiver`), so
that heartbeats are answered and messages touched also while a task keeps the worker's own loop
busy.
"""

__all__: list[str] = []
