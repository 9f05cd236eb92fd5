"""The application of the tests: each task writes a line to a file."""

import os
import time

from celery import Celery, Task

RETRY_SECONDS = 0.3
COUNTDOWN_SECONDS = 5.0

app = Celery("work", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=8,
)


def note(line: str) -> None:
    """Write one line; writes of several processes do not mix."""
    done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(done, f"{line}\n".encode())
    os.close(done)


@app.task
def plain(number: int) -> None:
    note(f"plain {number}")


@app.task(bind=True)
def retried(self: Task, number: int) -> None:
    """Fails the first time."""
    if self.request.retries == 0:
        raise self.retry(countdown=RETRY_SECONDS)
    note(f"retried {number}")


@app.task
def later(number: int, due: float) -> None:
    """Has a countdown and must not run before it has elapsed."""
    note(f"later {number}" if time.time() >= due else f"early {number}")


@app.task
def asleep(seconds: float) -> None:
    note("asleep")
    time.sleep(seconds)
    note("awake")


def publish(count: int) -> None:
    """Publish `count` tasks of each kind, mixed."""
    for number in range(count):
        plain.delay(number)
        retried.delay(number)
        due = time.time() + COUNTDOWN_SECONDS
        later.apply_async((number, due), countdown=COUNTDOWN_SECONDS)
