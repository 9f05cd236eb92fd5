"""The NSQ protocols as pure parsers and renderers: no socket, no clock, no task.

    server          ServerConnection: a client's bytes to events
    command_table   every command: allowed states, next state, decoder
    command_cache   fast parsers for PUB, DPUB and FIN
    mpub            incremental parser of multi-publish bodies
    events          the server's limits, states and events
    client          ClientConnection: a server's bytes to events; negotiation
    commands        rendering of commands
    frames          rendering and parsing of frames
    identify        IDENTIFY and feature negotiation
    compression     Deflate, Snappy, and the stack of layers
    buffer          buffer of received bytes
    lookup_v1       nsqlookupd's V1 protocol, both sides

Invalid input raises ProtocolError, or LineTooLongError where NSQ closes the connection
without an error. Any other exception is a bug.
"""
