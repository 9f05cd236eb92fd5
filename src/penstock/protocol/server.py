"""The server's side of a connection: a client's bytes in, events out.

Pass received bytes to `receive_data`, take events from `next_event` until it returns None, and call
`receive_eof` when the stream ends. `fast_parser.parse_single` and `parse_single` are shortcuts for
the most frequent input. Events are returned in the order of the commands. The cuts between received
chunks affect only how commands are grouped into events.

`next_event` raises at most once: ProtocolError, to be sent as an error frame before closing, or
LineTooLongError, to close without a frame. The connection then ignores further bytes and returns no
more events. All errors here are fatal; the non-fatal ones (E_FIN_FAILED, E_REQ_FAILED,
E_TOUCH_FAILED) come from the broker.

This module knows neither topics, messages in flight and authorisation nor time: the driver extends
its read deadline on every event.
"""

from penstock.common.errors import LineTooLongError, ProtocolError
from penstock.common.go_text import verbatim
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.command_cache import (
    FIN_PARSER,
    NO_LINE_YET,
    NO_PARSER,
    CommandCache,
    FinParser,
    PublishParser,
    parse_fin_run,
)
from penstock.protocol.command_table import COMMANDS, Command, MultiPublish, NeedMore, RawCommand
from penstock.protocol.commands import MAGIC
from penstock.protocol.events import (
    LINE_BYTES_MAX,
    Event,
    Fin,
    Limits,
    Nop,
    Publish,
    State,
    TopicNamed,
)

__all__ = ["ServerConnection"]

_FIN_STATES = COMMANDS[b"FIN"].states


class ServerConnection:
    """Parser of one client's bytes.

    The driver sets `tls_required` to False once TLS is established, and `heartbeats_enabled` to the
    result of IDENTIFY.
    """

    __slots__ = (
        "_buffer",
        "_command_cache",
        "_failure",
        "_has_magic",
        "_is_closed",
        "_is_upgraded",
        "_last_publish",
        "_multi",
        "_shortfall",
        "fast_parser",
        "heartbeats_enabled",
        "limits",
        "state",
        "tls_required",
    )

    def __init__(
        self,
        limits: Limits,
        command_cache: CommandCache | None = None,
        *,
        tls_required: bool = False,
    ) -> None:
        """`command_cache` may be shared by connections with the same limits."""
        self.limits = limits
        self.state = State.INIT
        self.tls_required = tls_required
        self.heartbeats_enabled = True
        self._buffer = ReceiveBuffer()
        self._has_magic = False
        self._is_closed = False
        self._command_cache = CommandCache() if command_cache is None else command_cache
        self._last_publish = NO_LINE_YET  # most likely also the next line
        self._is_upgraded = False  # TLS or compression is below
        self.fast_parser: PublishParser | FinParser = NO_PARSER
        """Parser of the most likely next command: its `parse_single` saves the lookup of ours."""
        # A multi-publish whose body is being read, and the error to raise after its TopicNamed.
        self._multi: MultiPublish | None = None
        self._failure: ProtocolError | None = None
        # The error to send if the stream ends now, inside a body.
        self._shortfall: ProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        """Buffer received bytes for `next_event`."""
        if not self._is_closed:
            self.fast_parser = NO_PARSER
            self._buffer.append(data)

    def parse_single(self, data: bytes) -> Publish | Fin | None:
        """Parse bytes that are exactly one publish under a cached line, or only FINs, while the
        buffer is empty. If this returns None, pass the bytes to `receive_data`.

        Saves buffering for consumers and for producers that wait for each response.
        """
        if self.fast_parser is NO_PARSER:
            return None
        parser = self._find_parser(data)
        if parser is None:
            return None
        self.fast_parser = parser
        return parser.parse_single(data)

    def disable_fast_parser(self) -> None:
        """Disable `parse_single` until the next call of `next_event`."""
        self.fast_parser = NO_PARSER

    def next_event(self) -> Event | None:
        """The next event, or None if it is incomplete."""
        # The buffer of a closed connection is empty and stays so.
        if not self._buffer.is_ready() and self._failure is None:
            self._enable_fast_parser()
            return None
        try:
            event = self._step()
        except (ProtocolError, LineTooLongError):
            self._close()
            raise
        if event is None:
            self._enable_fast_parser()
        return event

    def receive_eof(self) -> None:
        """End the stream; call it after `next_event` has returned None.

        Raises the ProtocolError to send if the stream ends inside a body. An end between commands
        or inside a line is no error.
        """
        shortfall = self._shortfall
        self._close()
        if shortfall is not None:
            raise shortfall

    @property
    def has_magic(self) -> bool:
        """Whether the client has sent the magic bytes of this protocol."""
        return self._has_magic

    @property
    def is_inside_command(self) -> bool:
        """Whether a command is incomplete; valid after `next_event` has returned None."""
        return self._multi is not None or not self._buffer.is_empty()

    def forget_unread(self) -> None:
        """Release the memory of data that is not parsed, after the connection is lost."""
        self._multi = None
        self._buffer.clear()

    def take_unread(self) -> bytes:
        """Remove and return the bytes that are not parsed, for a TLS or compression layer that was
        just added. Disables the fast parser for good."""
        self._is_upgraded = True
        self.fast_parser = NO_PARSER
        return self._buffer.take_all()

    def _enable_fast_parser(self) -> None:
        """Select the parser of the most likely next command, unless the general one is needed."""
        if (
            self.is_inside_command
            or not self._has_magic
            or self._is_closed
            or self._is_upgraded
            or self.tls_required
        ):
            return
        self.fast_parser = FIN_PARSER if self.state in _FIN_STATES else self._last_publish

    def _find_parser(self, data: bytes) -> PublishParser | FinParser | None:
        if self.state in _FIN_STATES and data.startswith(FIN_PARSER.line):
            return FIN_PARSER
        return self._command_cache.get(data[: data.find(b"\n", 0, LINE_BYTES_MAX) + 1])

    def _step(self) -> Event | None:
        if self._failure is not None:
            raise self._failure
        self._shortfall = None
        if self._multi is not None:
            return self._continue_multi(self._multi)
        if not self._has_magic and not self._read_magic():
            return None
        # Consumers send mostly runs of FINs: skip the general parser for them.
        if self.state in _FIN_STATES and (fins := parse_fin_run(self._buffer)) is not None:
            return fins
        return self._next_command()

    def _read_magic(self) -> bool:
        self._has_magic = self._buffer.skip_magic(MAGIC)
        return self._has_magic

    def _next_command(self) -> Event | None:
        buffer = self._buffer
        data, start = buffer.data, buffer.start
        newline = data.find(b"\n", start, start + LINE_BYTES_MAX)
        if newline < 0:
            self._await_newline(len(data) - start)
            return None
        parser = self._command_cache.get(data[start : newline + 1])
        if parser is not None and not self.tls_required:
            run = parser.parse_run(buffer)
            if run is not None:
                return run
        buffer.start = newline + 1
        name, *params = data[start:newline].removesuffix(b"\r").split(b" ")
        command = COMMANDS.get(name)
        if command is None or not self._accepts(command, params):
            return self._reject(name, command)
        return self._decode(command, RawCommand(command.name, params, start, buffer, self.limits))

    def _await_newline(self, size: int) -> None:
        if size >= LINE_BYTES_MAX:
            raise LineTooLongError(f"no newline within {LINE_BYTES_MAX} bytes")
        self._buffer.want(size + 1)

    def _accepts(self, command: Command, params: list[bytes]) -> bool:
        return (
            self.state in command.states
            and len(params) >= command.params_min
            and (self.heartbeats_enabled or not command.needs_heartbeats)
            and (command.allowed_before_tls or not self.tls_required)
        )

    def _reject(self, name: bytes, command: Command | None) -> Nop:
        """Raise the first applicable error, in NSQ's order; or ignore the command."""
        if self.tls_required and (command is None or not command.allowed_before_tls):
            raise _invalid(f"cannot {verbatim(name)} in current state (TLS required)")
        if command is None:
            raise _invalid(f"invalid command {verbatim(name)}")
        if self.state in command.ignored_in:
            return Nop()
        if self.state not in command.states:
            raise _invalid(f"cannot {command.name} in current state")
        if command.needs_heartbeats and not self.heartbeats_enabled:
            raise _invalid(f"cannot {command.name} with heartbeats disabled")
        raise _invalid(f"{command.name} insufficient number of {command.params_noun}")

    def _decode(self, command: Command, raw: RawCommand) -> Event | None:
        outcome = command.decode(raw)
        if isinstance(outcome, NeedMore):
            self._buffer.start = raw.line_start
            self._buffer.want(outcome.size)
            self._shortfall = outcome.shortfall
            return None
        if isinstance(outcome, PublishParser):
            self._command_cache.add(outcome)
            self._last_publish = outcome
            return outcome.parse_run(self._buffer)
        if isinstance(outcome, MultiPublish):
            return self._begin_multi(outcome)
        if command.next_state is not None:
            self.state = command.next_state
        return outcome

    def _begin_multi(self, multi: MultiPublish) -> Event:
        """Returns the Publish if its body is complete and valid. Otherwise returns TopicNamed; the
        Publish or the error follows as the next event."""
        self._multi = multi
        named = TopicNamed(multi.topic, multi.command)
        try:
            return self._continue_multi(multi) or named
        except ProtocolError as failure:
            self._failure = failure
            return named

    def _continue_multi(self, multi: MultiPublish) -> Publish | None:
        buffer, body = self._buffer, multi.body
        buffer.start = body.read(buffer.data, buffer.start)
        if body.missing:
            buffer.want(body.missing)
            self._shortfall = body.shortfall()
            return None
        self._multi = None
        return Publish(multi.topic, body.bodies, 1, multi.command, multi.defer_ms)

    def _close(self) -> None:
        self._is_closed = True
        self.fast_parser = NO_PARSER
        self._multi = self._failure = self._shortfall = None
        self._buffer.take_all()


def _invalid(detail: str) -> ProtocolError:
    return ProtocolError("E_INVALID", detail)
