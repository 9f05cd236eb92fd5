"""A worker that bills ten orders at a time. Orders that fail three times go to `orders.dead`.

python examples/worker/worker.py    # until Ctrl-C or SIGTERM; completes orders in progress
"""

import asyncio
import json
import os
import signal

from penstock.client import ClientConfig, Consumer, Message, Producer

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")

# A failed order is retried after 0.2 s, then after 0.4 s, while the consumer backs off.
CONFIG = ClientConfig(max_attempts=3, default_requeue_delay=0.2, backoff_multiplier=0.1)


async def bill(message: Message) -> None:
    """Bill an order. Returning finishes the message; an exception requeues it."""
    order = json.loads(message.body)
    if order["amount"] <= 0:
        raise ValueError(f"an amount of {order['amount']} cannot be billed")
    print(f"order {order['id']}: billed {order['amount']} to {order['customer']}", flush=True)


async def work() -> None:
    """Consume until a signal."""
    async with (
        Producer(NSQD) as producer,
        Consumer("orders", "billing", nsqd=NSQD, config=CONFIG) as consumer,
    ):

        async def bury(message: Message, error: BaseException | None) -> None:
            """Publish an order that cannot be billed, with the error."""
            try:
                order = dict(json.loads(message.body))
            except ValueError:
                order = {"body": message.body.decode(errors="replace")}
            letter = json.dumps({**order, "error": str(error)}, separators=(",", ":"))
            await producer.publish("orders.dead", letter.encode())

        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sign, consumer.stop)
        print("waiting for orders", flush=True)
        await consumer.run(bill, concurrency=10, dead_letter=bury)


if __name__ == "__main__":
    asyncio.run(work())
