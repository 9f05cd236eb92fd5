"""Time that clients need to continue after the leader of a replicated node is killed.

    python -m bench.takeover [RUNS]

Each run kills the leader (SIGKILL) and measures, for each client, the seconds until its first
publish is acknowledged and until its consumer gets the first message that was published after the
takeover. Consumers find the node by nsqlookupd, once with the client's default poll interval and
once with one second; stock clients publish to a list of all members. Timeouts have their defaults.
"""

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from penstock.client import ClientConfig, Consumer, Producer
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.replicated import run_replicated_node
from penstock.testing.waiting import wait_until

__all__ = ["main"]

TOPIC = "orders"
NODE_MODULES = Path(__file__).parents[1] / "tests" / "interop" / "node_modules"
NODE_PATH = Path(os.environ.get("NODE_PATH", NODE_MODULES))
SHORT_SECONDS = "1"
WAIT_SECONDS = 300.0

# Prints `published` and `received` with the time, once per message.
PYNSQ = """
import sys, time, nsq, tornado.ioloop
role, name, interval, *addresses = sys.argv[1:]
def report(what):
    print(what, time.time(), flush=True)
if role == "consume":
    def handle(message):
        report("received")
        return True
    options = {"lookupd_poll_interval": int(interval)} if interval else {}
    nsq.Reader("orders", name, message_handler=handle, lookupd_http_addresses=addresses,
               max_in_flight=50, **options)
else:
    writer = nsq.Writer(addresses)
    def publish():
        def done(_, data):
            if data == b"OK":
                report("published")
        writer.pub("orders", b"pynsq", callback=done)
    tornado.ioloop.PeriodicCallback(publish, 200).start()
nsq.run()
"""

NSQJS = """
const { Reader, Writer } = require('nsqjs')
const [role, name, interval, ...addresses] = process.argv.slice(2)
const report = (what) => console.log(what, Date.now() / 1000)
if (role === 'consume') {
  const options = interval ? { lookupdPollInterval: Number(interval) } : {}
  const reader = new Reader('orders', name,
    { lookupdHTTPAddresses: addresses, maxInFlight: 50, ...options })
  reader.on(Reader.MESSAGE, (message) => { report('received'); message.finish() })
  reader.on(Reader.ERROR, () => {})
  reader.connect()
} else {
  // A writer has one nsqd: the program connects to the next member after a failure.
  let turn = 0
  const connect = () => {
    const [host, port] = addresses[turn++ % addresses.length].split(':')
    const writer = new Writer(host, Number(port))
    let timer = null
    let ended = false
    const next = () => {
      if (ended) return
      ended = true
      clearInterval(timer)
      setTimeout(connect, 200)
    }
    writer.on(Writer.READY, () => {
      timer = setInterval(() => writer.publish('orders', 'nsqjs', (error) => {
        if (!error) report('published')
      }), 200)
    })
    writer.on(Writer.CLOSED, next)
    writer.on(Writer.ERROR, next)
    writer.connect()
  }
  connect()
}
"""


class Program:
    """A client program whose lines of output are events with a time."""

    def __init__(self, stack: ExitStack, command: list[str]) -> None:
        self._output = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (it is one)
        process = subprocess.Popen(
            command,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "NODE_PATH": str(NODE_PATH)},
        )
        stack.callback(process.wait)
        stack.callback(process.kill)

    def wait_for(self, name: str, moment: float) -> float:
        """Time of the first event after `moment`; waits for it."""
        return wait_until(lambda: self._first_after(moment), name, seconds=WAIT_SECONDS)

    def _first_after(self, moment: float) -> float:
        fd = self._output.fileno()
        lines = os.pread(fd, os.fstat(fd).st_size, 0).decode().splitlines()
        times = (float(line.split()[1]) for line in lines if len(line.split()) == 2)
        return next((each for each in times if each > moment), 0.0)


async def publish_forever(lookupd: str) -> None:
    """Publish with Penstock's client, and print the time of each acknowledgement."""
    async with Producer(lookupd=lookupd) as producer:
        while True:
            await producer.publish(TOPIC, b"penstock")
            print("published", time.time(), flush=True)
            await asyncio.sleep(0.2)


async def consume_forever(lookupd: str, channel: str, interval: str) -> None:
    """Consume with Penstock's client, and print the time of each message."""
    config = ClientConfig(lookupd_poll_interval=float(interval)) if interval else None
    async with Consumer(TOPIC, channel, lookupd=lookupd, config=config) as consumer:
        async for message in consumer:
            print("received", time.time(), flush=True)
            message.finish()


def measure() -> dict[str, float]:
    """One takeover: seconds by client and event."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(run_nsqlookupd())
        known = f"--lookupd-tcp-address={lookupd.tcp_address}"
        node = stack.enter_context(run_replicated_node(flags=[known]))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "pynsq_client.py").write_text(PYNSQ)
        (folder / "nsqjs_client.js").write_text(NSQJS)
        ours = [sys.executable, "-m", "bench.takeover"]
        commands = {
            "penstock": (ours, [lookupd.http_address]),
            "pynsq": (
                [sys.executable, "-W", "ignore", str(folder / "pynsq_client.py")],
                [member.tcp_address for member in node.members.values()],
            ),
        }
        if shutil.which("node") and NODE_PATH.exists():
            commands["nsqjs"] = (["node", str(folder / "nsqjs_client.js")], commands["pynsq"][1])
        node.led_by.publish(TOPIC, b"first")
        programs: dict[str, Program] = {}
        for name, (command, targets) in commands.items():
            for interval in ("", SHORT_SECONDS):
                channel = f"{name}{interval}"
                programs[f"{name}, delivery, {'1 s poll' if interval else 'default poll'}"] = (
                    Program(stack, [*command, "consume", channel, interval, lookupd.http_address])
                )
            programs[f"{name}, publish"] = Program(stack, [*command, "publish", "", "", *targets])
        for name, program in programs.items():
            program.wait_for(name, 0.0)
        leader = node.wait_for_leader()
        killed_at = time.time()
        node.kill(leader)
        node.wait_for_leader(not_=leader)
        seconds = {"new leader is ready": time.time() - killed_at}
        # Messages that the old leader had sent may still be printed.
        moment = killed_at + 1.0
        for name, program in programs.items():
            seconds[name] = program.wait_for(name, moment) - killed_at
        return seconds


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    with contextlib.suppress(KeyboardInterrupt):
        match arguments:
            case ["publish", _, _, lookupd]:
                asyncio.run(publish_forever(lookupd))
            case ["consume", channel, interval, lookupd]:
                asyncio.run(consume_forever(lookupd, channel, interval))
            case _:
                print_table(int(arguments[0]) if arguments else 5)


def print_table(count: int) -> None:
    """Measure `count` takeovers."""
    runs = []
    for number in range(count):
        runs.append(measure())
        print(f"run {number + 1}:", json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print("| seconds after the kill | least | median | most |\n|---|---|---|---|")
    for name in runs[0]:
        values = [each[name] for each in runs]
        figures = min(values), statistics.median(values), max(values)
        print(f"| {name} |", " | ".join(f"{value:.1f}" for value in figures), "|")


if __name__ == "__main__":
    main(sys.argv[1:])
