"""A Spark server for all pages, because starting Spark takes longer than most pages.

The server executes requests over a socket: a `penstock` command that needs Spark, or input for
pyspark's shell. The client passes its folder and its streams, and receives the exit code, so that a
shell sees no difference.

    python spark_desk.py serve SOCKET
    python spark_desk.py ask SOCKET penstock archive orders --lake lake
    python spark_desk.py ask SOCKET type SCRIPT      # names are kept, as in a shell, until:
    python spark_desk.py ask SOCKET clear
"""

import json
import os
import socket
import sys
import traceback
from typing import Any


def main() -> int:
    """Run the server or the client, depending on the first argument."""
    what, address, *words = sys.argv[1:]
    return serve(address) if what == "serve" else ask(address, words)


def ask(address: str, words: list[str]) -> int:
    """Send a request with our streams to the server. Returns the exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = json.dumps({"folder": os.getcwd(), "words": words}).encode()
        socket.send_fds(connection, [request], [0, 1, 2])
        return int(connection.recv(16) or b"1")


def serve(address: str) -> int:
    """Serve one request after the other, until killed."""
    desk = SparkServer()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                request, streams, _, _ = socket.recv_fds(connection, 65536, 3)
                code = run_with_streams(streams, desk, json.loads(request))
                connection.sendall(b"%d" % code)


def run_with_streams(streams: list[int], desk: "SparkServer", request: dict[str, Any]) -> int:
    """Execute a request with the folder and streams of the client."""
    ours = [os.dup(stream) for stream in range(3)]
    for stream, theirs in enumerate(streams):
        os.dup2(theirs, stream)
        os.close(theirs)
    os.chdir(request["folder"])
    try:
        return desk.do(request["words"])
    except BaseException:  # noqa: BLE001 (any error belongs to the client)
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, own in enumerate(ours):
            os.dup2(own, stream)
            os.close(own)


class SparkServer:
    """The Spark session, and the names that were defined by typed scripts."""

    def __init__(self) -> None:
        # sys.path has only this folder, because this file runs as a script. Clients do not need it.
        sys.path.append(os.path.join(os.path.dirname(__file__), "..", ".."))
        from tests.spark.local_session import INTERPRETED, local_session  # noqa: PLC0415

        self.spark = local_session("docs", INTERPRETED)
        self.names: dict[str, Any] = {"spark": self.spark}

    def do(self, words: list[str]) -> int:
        """Execute one request."""
        if words[0] == "penstock":
            from penstock.cli.penstock import main as penstock  # noqa: PLC0415

            return penstock(words[1:])
        if words[0] == "type":
            with open(words[1], encoding="utf-8") as script:
                exec(compile(script.read(), words[1], "exec"), self.names)
        for query in self.spark.streams.active:
            if words[0] == "clear":
                query.stop()
            else:
                query.processAllAvailable()
        if words[0] == "clear":
            self.names = {"spark": self.spark}
        return 0


if __name__ == "__main__":
    sys.exit(main())
