import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

# The bench is not installed; it is imported from the root of the repository.
sys.path.insert(0, str(Path(__file__).parents[2]))

Handler = Callable[[socket.socket], None]
Serve = Callable[[Handler], tuple[str, int]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that calls a handler with its first connection. Returns its address."""
    with ExitStack() as stack:

        def start(handler: Handler) -> tuple[str, int]:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(60)

            def accept() -> None:
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(None)  # MSG_WAITALL works on blocking sockets only
                    handler(peer)
                    # Closing with bytes unread would reset the connection and lose the last reply.
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(65536):
                        pass

            thread = threading.Thread(target=accept)
            thread.start()
            stack.callback(thread.join)
            host, port = listener.getsockname()
            return host, port

        yield start
