"""A Celery application on NSQ. See docs/how_to/celery.md."""

import os
import time

from celery import Celery, Task

app = Celery("shop", broker=os.environ.get("BROKER_URL", "nsq://127.0.0.1:4150"))
app.conf.task_ignore_result = True


@app.task
def greet(name: str) -> None:
    """A minimal task."""
    print(f"hello, {name}")


@app.task(bind=True, acks_late=True, max_retries=3)
def charge(self: Task, order: int) -> None:
    """Fails at first and is retried after a second. If the worker is killed meanwhile, the task is
    delivered again, because it is acknowledged only when it is done."""
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    time.sleep(0.1)
    print(f"order {order} is paid")
