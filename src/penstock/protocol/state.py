"""A connection's life, seen from the server.

    INIT --SUB--> SUBSCRIBED --CLS--> CLOSING

A producer stays in INIT for good: IDENTIFY, AUTH and publishing move nothing. Which command is
allowed in which state, and where it leads, is in `penstock.protocol.command_table`.
"""

from enum import IntEnum

__all__ = ["State"]


class State(IntEnum):
    """The numbers are public: /stats reports them."""

    INIT = 0
    DISCONNECTED = 1
    CONNECTED = 2
    SUBSCRIBED = 3
    CLOSING = 4
