"""Spark's exceptions as one-line errors.

An exception in one of Spark's Python processes, such as an error of the `nsq` source, arrives as
the text of a traceback inside a Java exception inside a Python exception. The useful part is the
last line of the innermost traceback.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from penstock.common.errors import PipelineError

__all__ = ["error_line", "translate_spark_errors"]

# The last line of a traceback, if the exception is one of Penstock's.
_OWN_ERROR = re.compile(r"^(?:\w+Error: )?(?:penstock|pyspark_nsq)(?:\.\w+)+: (.+)$", re.MULTILINE)

# The last line of any other Python traceback: a class and a text.
_PYTHON_ERROR = re.compile(
    r"^Traceback .*?^((?:\w+\.)*\w+(?:Error|Exception)?: .+?)$", re.MULTILINE | re.DOTALL
)

_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQL_STATE = re.compile(r"[,;]? ?SQLSTATE: \w{5}")
_QUERY_FAILED = re.compile(r"^Query \[id = .*?\] terminated with exception: ", re.DOTALL)
_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error): ")

LENGTH_MAX = 500


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Convert exceptions of Spark in the block to PipelineError."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as failure:
        raise PipelineError(error_line(failure)) from failure


def error_line(failure: BaseException) -> str:
    """The most useful line of an exception."""
    text = _text(failure)
    ours = _OWN_ERROR.findall(text)
    if ours:
        return str(ours[-1])
    traceback = _PYTHON_ERROR.findall(text)
    line = traceback[-1] if traceback else _strip_noise(text)
    return line if len(line) <= LENGTH_MAX else line[:LENGTH_MAX] + "..."


def _text(failure: BaseException) -> str:
    if isinstance(failure, Py4JJavaError):
        return str(failure.java_exception.toString())
    return str(failure)


def _strip_noise(text: str) -> str:
    """Spark's message without error codes, query plan and query text."""
    line = text.strip().partition("\n")[0]
    before = ""
    while line != before:
        before = line
        for noise in (_JAVA_CLASS, _CONDITION, _QUERY_FAILED):
            line = noise.sub("", line)
    line = _SQL_STATE.sub("", line).strip().rstrip(";")
    return line or "Spark failed without an error message"
