"""A Celery application on NSQ. docs/how_to/celery.md shows how it is run."""

import os
import time

from celery import Celery, Task

app = Celery("shop", broker=os.environ.get("BROKER_URL", "nsq://127.0.0.1:4150"))
app.conf.task_ignore_result = True


@app.task
def greet(name: str) -> None:
    """The least that a task can be."""
    print(f"hello, {name}")


@app.task(bind=True, acks_late=True, max_retries=3)
def charge(self: Task, order: int) -> None:
    """Fails at first, and is tried again a second later. A worker that is killed meanwhile costs
    nothing: it is not acknowledged before it is done."""
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    time.sleep(0.1)
    print(f"order {order} is paid")
