"""The server's side of a connection: a client's bytes in, events out.

Feed what was received to `receive_data`, take events from `next_event` until it returns None, and
when the stream ends call `receive_eof`. `maybe_only` is a short way for what comes most, and
`expected.maybe_only` one that is shorter still. Events come out in the order of the commands, as
few and as large as the bytes at hand allow; how the bytes were cut changes how commands are grouped
into events, never what they say.

`next_event` returns an event, or None for "nothing more yet", or raises once: a ProtocolError to be
sent as an error frame before closing, or LineTooLongError to close without a frame. Then the
connection is dead: it takes no more bytes and gives no more events. Every error here is fatal; the
non-fatal ones (E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED) come from the broker.

It knows nothing of topics, messages in flight or authorisation, and nothing of time: the driver
resets its read deadline on every event, since every command is one or part of one.
"""

from penstock.common.errors import LineTooLongError, ProtocolError
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.command_cache import NO_LINE, NOTHING, PublishLine, PublishLines
from penstock.protocol.command_table import COMMANDS, Command
from penstock.protocol.decoders import (
    FIN_LINE,
    FinLine,
    MultiPublish,
    NeedMore,
    Request,
    maybe_fin_run,
)
from penstock.protocol.events import Event, Fin, Nop, Publish, TopicNamed
from penstock.protocol.limits import LINE_BYTES_MAX, Limits
from penstock.protocol.state import State
from penstock.protocol.text import verbatim

__all__ = ["LINE_BYTES_MAX", "Limits", "LineTooLongError", "ServerConnection", "State"]

_MAGIC = b"  V2"
_FIN_STATES = COMMANDS[b"FIN"].states


class ServerConnection:
    """One client, from its magic to its end.

    The driver sets `tls_required` to False once TLS is up, and `heartbeats_enabled` to what
    IDENTIFY negotiated.
    """

    __slots__ = (
        "_buffer",
        "_dead",
        "_failure",
        "_greeted",
        "_is_layered",
        "_last_line",
        "_multi",
        "_publish_lines",
        "_shortfall",
        "expected",
        "heartbeats_enabled",
        "limits",
        "state",
        "tls_required",
    )

    def __init__(
        self,
        limits: Limits,
        publish_lines: PublishLines | None = None,
        *,
        tls_required: bool = False,
    ) -> None:
        """`publish_lines` may be shared with others of the same limits."""
        self.limits = limits
        self.state = State.INIT
        self.tls_required = tls_required
        self.heartbeats_enabled = True
        self._buffer = ReceiveBuffer()
        self._greeted = False
        self._dead = False
        self._publish_lines = PublishLines() if publish_lines is None else publish_lines
        self._last_line = NO_LINE  # most likely the next one's too
        self._is_layered = False
        self.expected: PublishLine | FinLine = NOTHING
        """What most likely comes next: its `maybe_only` does what ours does, for that alone."""
        # A multi-publish whose body is being read, and the error to raise after its TopicNamed.
        self._multi: MultiPublish | None = None
        self._failure: ProtocolError | None = None
        # What the client is told if its stream ends now, inside a body.
        self._shortfall: ProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        """Take what the client sent. Nothing is parsed before `next_event`."""
        if not self._dead:
            self.expected = NOTHING
            self._buffer.append(data)

    def maybe_only(self, data: bytes) -> Publish | Fin | None:
        """Take what the client sent if nothing waits before it, and it is one message under a line
        that we know, or FINs, and nothing else; or None, and it is for `receive_data` to take.

        Producers that await each answer, and consumers, send hardly anything but this.
        """
        if self.expected is NOTHING:
            return None
        line = self._maybe_line_of(data)
        if line is None:
            return None
        self.expected = line
        return line.maybe_only(data)

    def expect_nothing(self) -> None:
        """Nothing is to be taken the short way until `next_event` has been asked again."""
        self.expected = NOTHING

    def next_event(self) -> Event | None:
        """What the client asks for next, or None if that is not all here."""
        # A dead connection's buffer is empty, and never filled again.
        if not self._buffer.is_ready() and self._failure is None:
            self._expect_more()
            return None
        try:
            event = self._step()
        except (ProtocolError, LineTooLongError):
            self._die()
            raise
        if event is None:
            self._expect_more()
        return event

    def receive_eof(self) -> None:
        """The stream has ended, and `next_event` has returned None.

        Raises the ProtocolError that the client is owed if it broke off inside a body. Between
        commands and inside a line, ending is nobody's mistake.
        """
        shortfall = self._shortfall
        self._die()
        if shortfall is not None:
            raise shortfall

    @property
    def is_greeted(self) -> bool:
        """Whether the client has said that it speaks this protocol."""
        return self._greeted

    @property
    def is_inside_command(self) -> bool:
        """Whether a command has begun, and is not all here; asked when `next_event` has returned
        None."""
        return self._multi is not None or not self._buffer.is_empty()

    def forget_unread(self) -> None:
        """Release the memory of data that is not parsed, after the connection is lost."""
        self._multi = None
        self._buffer.clear()

    def take_unread(self) -> bytes:
        """Hand over what was received and not parsed: it belongs to the TLS or compression layer
        that has just been put underneath. What comes from there has to be taken the long way."""
        self._is_layered = True
        self.expected = NOTHING
        return self._buffer.take_all()

    def _expect_more(self) -> None:
        """Guesses what comes next, unless it has to be joined to what is here."""
        if (
            self.is_inside_command
            or not self._greeted
            or self._dead
            or self._is_layered
            or self.tls_required
        ):
            return
        self.expected = FIN_LINE if self.state in _FIN_STATES else self._last_line

    def _maybe_line_of(self, data: bytes) -> PublishLine | FinLine | None:
        """What the bytes begin with, if it is something that is easily taken."""
        if self.state in _FIN_STATES and data.startswith(FIN_LINE.line):
            return FIN_LINE
        return self._publish_lines.get(data[: data.find(b"\n", 0, LINE_BYTES_MAX) + 1])

    def _step(self) -> Event | None:
        if self._failure is not None:
            raise self._failure
        self._shortfall = None
        if self._multi is not None:
            return self._continue_multi(self._multi)
        if not self._greeted and not self._read_magic():
            return None
        # A run of FINs: most of what consumers send.
        if self.state in _FIN_STATES and (fins := maybe_fin_run(self._buffer)) is not None:
            return fins
        return self._next_command()

    def _read_magic(self) -> bool:
        buffer = self._buffer
        magic = buffer.data[buffer.start : buffer.start + len(_MAGIC)]
        if len(magic) < len(_MAGIC):
            buffer.want(len(_MAGIC))
            return False
        if magic != _MAGIC:
            raise ProtocolError("E_BAD_PROTOCOL")
        buffer.start += len(_MAGIC)
        self._greeted = True
        return True

    def _next_command(self) -> Event | None:
        buffer = self._buffer
        data, start = buffer.data, buffer.start
        newline = data.find(b"\n", start, start + LINE_BYTES_MAX)
        if newline < 0:
            self._await_newline(len(data) - start)
            return None
        line = self._publish_lines.get(data[start : newline + 1])
        if line is not None and not self.tls_required:
            run = line.maybe_run(buffer)
            if run is not None:
                return run
        buffer.start = newline + 1
        word, *params = data[start:newline].removesuffix(b"\r").split(b" ")
        command = COMMANDS.get(word)
        if command is None or not self._accepts(command, params):
            return self._refuse(word, command)
        return self._decode(command, Request(command.word, params, start, buffer, self.limits))

    def _await_newline(self, size: int) -> None:
        if size >= LINE_BYTES_MAX:
            raise LineTooLongError(f"no newline within {LINE_BYTES_MAX} bytes")
        self._buffer.want(size + 1)

    def _accepts(self, command: Command, params: list[bytes]) -> bool:
        return (
            self.state in command.states
            and len(params) >= command.params_min
            and (self.heartbeats_enabled or not command.needs_heartbeats)
            and (command.before_tls or not self.tls_required)
        )

    def _refuse(self, word: bytes, command: Command | None) -> Nop:
        """Raise for the first reason there is, in the reference's order; or ignore the command."""
        if self.tls_required and (command is None or not command.before_tls):
            raise _invalid(f"cannot {verbatim(word)} in current state (TLS required)")
        if command is None:
            raise _invalid(f"invalid command {verbatim(word)}")
        if self.state in command.ignored_in:
            return Nop()
        if self.state not in command.states:
            raise _invalid(f"cannot {command.word} in current state")
        if command.needs_heartbeats and not self.heartbeats_enabled:
            raise _invalid(f"cannot {command.word} with heartbeats disabled")
        raise _invalid(f"{command.word} insufficient number of {command.params_noun}")

    def _decode(self, command: Command, request: Request) -> Event | None:
        outcome = command.decode(request)
        if isinstance(outcome, NeedMore):
            self._buffer.start = request.line_start
            self._buffer.want(outcome.size)
            self._shortfall = outcome.shortfall
            return None
        if isinstance(outcome, PublishLine):
            self._publish_lines.remember(outcome)
            self._last_line = outcome
            return outcome.maybe_run(self._buffer)
        if isinstance(outcome, MultiPublish):
            return self._begin_multi(outcome)
        if command.moves_to is not None:
            self.state = command.moves_to
        return outcome

    def _begin_multi(self, multi: MultiPublish) -> Event:
        """The Publish if the whole body is here and good, else TopicNamed and the rest later."""
        self._multi = multi
        named = TopicNamed(multi.topic, multi.word)
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
        return Publish(multi.topic, body.bodies, 1, multi.word, multi.defer_ms)

    def _die(self) -> None:
        self._dead = True
        self.expected = NOTHING
        self._multi = self._failure = self._shortfall = None
        self._buffer.take_all()


def _invalid(detail: str) -> ProtocolError:
    return ProtocolError("E_INVALID", detail)
