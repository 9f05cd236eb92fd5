"""One Spark for all pages: starting it takes longer than most of them.

The desk is a process that has Spark running, and does what is passed to it over a socket: a
`penstock` command that needs Spark, or what is typed into pyspark's shell. Whoever asks lends it
the folder and the streams, and gets the exit code, so that to a shell there is no difference.

    python spark_desk.py serve SOCKET
    python spark_desk.py ask SOCKET penstock archive orders --lake lake
    python spark_desk.py ask SOCKET type SCRIPT      # names stay, as in a shell, until:
    python spark_desk.py ask SOCKET clear
"""

import json
import os
import socket
import sys
import traceback
from typing import Any


def main() -> int:
    """Which side it is, the first argument says."""
    what, address, *words = sys.argv[1:]
    return serve(address) if what == "serve" else ask(address, words)


def ask(address: str, words: list[str]) -> int:
    """Has the desk do something, with our streams; returns its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = json.dumps({"folder": os.getcwd(), "words": words}).encode()
        socket.send_fds(connection, [request], [0, 1, 2])
        return int(connection.recv(16) or b"1")


def serve(address: str) -> int:
    """Serves one after the other, until it is killed."""
    desk = Desk()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                request, streams, _, _ = socket.recv_fds(connection, 65536, 3)
                code = with_streams(streams, desk, json.loads(request))
                connection.sendall(b"%d" % code)


def with_streams(streams: list[int], desk: "Desk", request: dict[str, Any]) -> int:
    """Does it as if it were a process of the one who asks."""
    ours = [os.dup(stream) for stream in range(3)]
    for stream, theirs in enumerate(streams):
        os.dup2(theirs, stream)
        os.close(theirs)
    os.chdir(request["folder"])
    try:
        return desk.do(request["words"])
    except BaseException:  # noqa: BLE001 (whatever it is, it is the asker's)
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, own in enumerate(ours):
            os.dup2(own, stream)
            os.close(own)


class Desk:
    """Spark, and the names that have been typed."""

    def __init__(self) -> None:
        # Run as a file, we know our own folder only. And one who asks does not need it.
        sys.path.append(os.path.join(os.path.dirname(__file__), "..", ".."))
        from tests.spark.local_session import INTERPRETED, local_session  # noqa: PLC0415

        self.spark = local_session("docs", INTERPRETED)
        self.names: dict[str, Any] = {"spark": self.spark}

    def do(self, words: list[str]) -> int:
        """What is asked for."""
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
