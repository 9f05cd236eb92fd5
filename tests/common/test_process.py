"""Signals at critical moments: during and after a stop."""

import subprocess
import sys
import textwrap

import pytest


def run(program: str) -> "subprocess.CompletedProcess[str]":
    """The result of a daemon that runs this program and signals itself by `tell(number)`."""
    beginning = """
        import asyncio, os, signal, sys, uvloop
        from penstock.common.logs import Logger, LogLevel
        from penstock.common.process import drain_on_sigterm, ignore_signals, stop_on_signals

        log = Logger("[test] ", LogLevel.INFO)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started under

        def tell(number):
            os.kill(os.getpid(), number)

        def echo(number):
            "As uvloop hears it, when one signal comes close after another."
            wakeup = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(wakeup)
            os.write(wakeup, bytes([number]))
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(beginning) + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def serve(steps: str) -> "subprocess.CompletedProcess[str]":
    """The result of a daemon that runs these steps, with an event `stop`, and exits with 0."""
    body = f"stop = asyncio.Event()\n{textwrap.dedent(steps)}\nignore_signals()\nreturn 0\n"
    return run(
        f"async def serve():\n{textwrap.indent(body, '    ')}\nsys.exit(uvloop.run(serve()))\n"
    )


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_after_a_clean_stop_changes_nothing(number: str) -> None:
    ended = run(f"""
        async def serve():
            stop = asyncio.Event()
            stop_on_signals(stop, log)
            ignore_signals()
            tell(signal.{number})
            return 0

        class Teller:
            def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.{number}):
                kill(pid, number)  # when Python has given signals their defaults back

        teller = Teller()
        code = uvloop.run(serve())
        tell(signal.{number})
        sys.exit(code)
    """)
    assert (0, "") == (ended.returncode, ended.stderr)


def test_the_first_signal_does_not_interrupt_a_stop_in_progress() -> None:
    ended = serve("""
        stop_on_signals(stop, log)
        stop.set()
        tell(signal.SIGTERM)
        await asyncio.sleep(0.1)
    """)
    assert 0 == ended.returncode, ended.stderr


def test_the_second_signal_exits_without_a_clean_stop() -> None:
    ended = serve("""
        stop_on_signals(stop, log)
        tell(signal.SIGTERM)
        await stop.wait()
        tell(signal.SIGINT)
        await asyncio.sleep(20)
    """)
    assert 1 == ended.returncode
    assert "SIGINT again, exiting without a clean stop" in ended.stderr


def test_an_immediate_repetition_of_a_signal_is_ignored() -> None:
    ended = serve("""
        class Stop(asyncio.Event):
            def set(self):
                super().set()
                echo(signal.SIGTERM)

        stop = Stop()
        stop_on_signals(stop, log)
        tell(signal.SIGTERM)
        await stop.wait()
        await asyncio.sleep(0.1)
    """)
    assert 0 == ended.returncode, ended.stderr


def test_an_immediate_repetition_of_a_signal_does_not_end_a_drain() -> None:
    ended = serve("""
        drain_on_sigterm(lambda: echo(signal.SIGTERM), stop, log)
        tell(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert not stop.is_set()
        tell(signal.SIGTERM)
        await stop.wait()
    """)
    assert 0 == ended.returncode, ended.stderr


def test_the_first_sigterm_drains_and_the_second_stops() -> None:
    ended = serve("""
        draining = asyncio.Event()
        drain_on_sigterm(draining.set, stop, log)
        tell(signal.SIGTERM)
        await draining.wait()
        assert not stop.is_set()
        tell(signal.SIGTERM)
        await stop.wait()
    """)
    assert 0 == ended.returncode, ended.stderr
