"""nsq_to_file: write the messages of topics to files, one per line.

A message is finished only after its file is synced, so every message is in a file, in the channel,
or in both. Files are synced when `--max-in-flight` messages are unsynced or nsqd waits for answers,
after `--sync-interval`, on SIGHUP (which also starts new files), and at the end. If the disk fails,
the program exits.
"""

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from penstock.admin_api.models import TopicsResponse
from penstock.client import Consumer, Message
from penstock.client.addresses import parse_lookupds
from penstock.client.discovery import request_headers
from penstock.common import names
from penstock.common.clock import SECOND_NS, SystemClock
from penstock.common.errors import ClientError, ConfigError, HttpRequestError, NotConnectedError
from penstock.common.logs import Logger
from penstock.net.http_client.client import HttpClient
from penstock.net.http_client.messages import ACCEPT_V1
from penstock.tools.consumer_options import consumer_config
from penstock.tools.nsq_to_file_options import NsqToFileOptions, compile_topic_pattern
from penstock.tools.rotating_file import FileNames, RotatingFile
from penstock.tools.runner import run_tool

__all__ = ["TopicArchiver", "run"]

# Delay before the next query for topics if no nsqlookupd has answered.
RETRY_SECONDS = 5.0


def run(options: NsqToFileOptions, log: Logger) -> int:
    """Write messages to files until a signal stops it. Raises Error."""
    return run_tool(lambda stop: _Archiver(options, log).run(stop), log)


class _Archiver:
    """Archives the given topics, or all topics that nsqlookupds list, including new ones."""

    def __init__(self, options: NsqToFileOptions, log: Logger) -> None:
        self._options = options
        self._config = consumer_config("nsq_to_file", options)
        self._log = log
        self._pattern = compile_topic_pattern(options)
        self._http = HttpClient(
            connect_timeout_seconds=options.http_client_connect_timeout_ns / SECOND_NS,
            request_timeout_seconds=options.http_client_request_timeout_ns / SECOND_NS,
        )
        self._topics: dict[str, TopicArchiver] = {}

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set or a topic fails. Raises Error."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._run(stop, tasks)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return 0

    async def _run(self, stop: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        hangup = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
        background = [tasks.create_task(self._rotate_on_hangup(hangup, tasks))]
        if self._options.topic:
            await self._add(self._options.topic, tasks)
        else:
            background.append(tasks.create_task(self._poll_topics(tasks)))
        await stop.wait()
        for task in background:
            task.cancel()
        for topic in self._topics.values():
            topic.stop()

    async def _rotate_on_hangup(self, hangup: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        """Rotate all files on SIGHUP. Each rotation is its own task and survives the cancellation
        of this one: its thread may still be using the file."""
        while await hangup.wait():
            hangup.clear()
            self._log.info("SIGHUP, syncing and finishing files")
            for topic in self._topics.values():
                tasks.create_task(topic.rotate())

    # Topics.

    async def _add(self, topics: Iterable[str], tasks: asyncio.TaskGroup) -> None:
        """Start archiving new topics. Raises ConfigError or ClientError if one fails to start."""
        for topic in topics:
            if not names.is_valid(topic):
                raise ConfigError(f"topic name {topic!r} is not valid")
            if topic not in self._topics and self._pattern.search(topic):
                self._topics[topic] = archive = await self._start(topic)
                tasks.create_task(archive.run())

    async def _start(self, topic: str) -> "TopicArchiver":
        options = self._options
        file_names = FileNames(options, topic, hostname=os.uname().nodename, pid=os.getpid())
        consumer = Consumer(
            topic,
            options.channel,
            nsqd=options.nsqd_tcp_address,
            lookupd=options.lookupd_http_address,
            config=self._config,
        )
        await consumer.start(wait_for_lookupd=True)
        return TopicArchiver(
            consumer, RotatingFile(options, file_names, self._log, SystemClock()), options
        )

    async def _poll_topics(self, tasks: asyncio.TaskGroup) -> None:
        refresh_seconds = self._options.topic_refresh_ns / SECOND_NS
        while True:
            pause_seconds = refresh_seconds
            try:
                known = await self._query_topics()
            except NotConnectedError as failure:
                self._log.error("could not retrieve topic list: %s", failure)
                pause_seconds = min(refresh_seconds, RETRY_SECONDS)
            else:
                await self._add_found(known, tasks)
            await asyncio.sleep(pause_seconds)

    async def _add_found(self, topics: Iterable[str], tasks: asyncio.TaskGroup) -> None:
        for topic in topics:
            try:
                await self._add([topic], tasks)
            except (ConfigError, ClientError) as failure:
                self._log.error("cannot archive topic %s yet: %s", topic, failure)

    async def _query_topics(self) -> list[str]:
        """All topics of all nsqlookupds. Raises NotConnectedError if none answers."""
        # HttpClient asks for V1 by itself.
        headers = [each for each in request_headers(self._config) if each != ACCEPT_V1]
        found: set[str] = set()
        failures: list[HttpRequestError] = []
        lookupds = parse_lookupds(self._options.lookupd_http_address)
        for lookupd in lookupds:
            try:
                answer = await self._http.get_json(
                    f"{lookupd}/topics", TopicsResponse, headers=headers
                )
            except HttpRequestError as failure:
                self._log.warning("%s", failure)
                failures.append(failure)
            else:
                found.update(answer.topics or ())
        if len(failures) == len(lookupds):
            raise NotConnectedError("no nsqlookupd answered: " + "; ".join(map(str, failures)))
        return sorted(found)


class TopicArchiver:
    """Writes the messages of one topic. `_unsynced` are written, but not yet synced messages; hold
    the lock to access them or the files."""

    def __init__(self, consumer: Consumer, files: RotatingFile, options: NsqToFileOptions) -> None:
        self._consumer = consumer
        self._files = files
        self._unsynced_max = options.max_in_flight
        self._sync_seconds = options.sync_interval_ns / SECOND_NS
        self._unsynced: list[Message] = []
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Run until `stop`; then sync and finish all messages. Raises StorageError."""
        touching = asyncio.create_task(self._consumer.keep_touching(lambda: self._unsynced))
        try:
            await self._take()
            await self.rotate()
        finally:
            touching.cancel()
            await self._consumer.close()

    def stop(self) -> None:
        """Receive no more messages."""
        self._consumer.stop()

    async def rotate(self) -> None:
        """Sync and complete the file. Raises StorageError."""
        async with self._lock:
            await self._sync()
            await asyncio.to_thread(self._files.close)

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        tick_at = loop.time() + self._sync_seconds
        while True:
            messages: list[Message] | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout_at(tick_at):
                    messages = await self._consumer.batch(self._unsynced_max)
            if messages:
                await self._store(messages)
            elif messages is not None:
                return
            if loop.time() >= tick_at:
                tick_at = loop.time() + self._sync_seconds
                await self._tick()

    async def _store(self, messages: list[Message]) -> None:
        async with self._lock:
            is_full = len(self._unsynced) + len(messages) >= self._unsynced_max
            must_sync = is_full or self._consumer.is_starved
            is_synced = await asyncio.to_thread(self._write, messages, must_sync=must_sync)
            self._unsynced += messages
            if is_synced:
                self._finish()

    def _write(self, messages: list[Message], *, must_sync: bool) -> bool:
        """Write the messages, in a worker thread. Returns whether everything written is synced to
        disk."""
        has_rotated = self._files.write([message.body for message in messages])
        if has_rotated or must_sync:
            self._files.sync()
        return has_rotated or must_sync

    async def _tick(self) -> None:
        async with self._lock:
            await asyncio.to_thread(self._files.rotate_if_due)
            await self._sync()

    async def _sync(self) -> None:
        if self._unsynced:
            await asyncio.to_thread(self._files.sync)
            self._finish()

    def _finish(self) -> None:
        """Finish the messages, which are now synced."""
        for message in self._unsynced:
            message.finish()
        self._unsynced = []
