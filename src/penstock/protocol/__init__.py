"""The NSQ V2 protocol, pure: bytes in, events and frames out. No socket, no clock, no task.

    frames          what a server sends: rendered, and read by a client
    commands        what a client sends, one function a command
    server          ServerConnection: a client's bytes become events
    events          those events
    client          ClientConnection: a server's bytes become events, commands its bytes
    command_table   which command is allowed when, where it leads, what reads it
    decoders        what reads it
    mpub            the body of a multi-publish, read as it arrives
    identify        IDENTIFY: its JSON, and what is negotiated
    layer           what may stand between a transport and this: compression, TLS
    deflate snappy  the two compressions
    buffer          received bytes that wait to be parsed
    text            a peer's bytes inside our error texts
    limits          how much a peer may ask for
    state           a connection's life
    lookup_v1       nsqlookupd's own protocol, V1: what nsqd sends, and how it is answered
    lookup_server   the other side of that

Bad input raises `penstock.common.errors.ProtocolError`, or `LineTooLongError` where the reference
closes the connection without an error. Any other exception is a bug.
"""
