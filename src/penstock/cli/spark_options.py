"""Options that all Spark commands have.

Does not import Spark: `penstock archive --help` must be fast and work without it.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.command_options import NSQD_HTTP_ADDRESS, HttpAccess
from penstock.common.errors import ConfigError

if TYPE_CHECKING:
    from penstock.pipelines.brokers import Brokers
    from penstock.pipelines.session import SparkSettings

__all__ = ["create_brokers", "require_spark", "spark_options", "spark_settings"]

F = TypeVar("F", bound=Callable[..., Any])

_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas")


def spark_options(command: F) -> F:
    """Add the options `master`, `spark_log` and `spark_conf`."""
    master = click.option(
        "--master",
        envvar="PENSTOCK_SPARK_MASTER",
        default="local[*]",
        show_default=True,
        metavar="URL",
        help="Spark master, such as spark://10.0.0.1:7077.",
    )
    log = click.option(
        "--spark-log",
        default="",
        metavar="FILE",
        help="File for Spark's log; - for stderr.  [default: no log]",
    )
    conf = click.option(
        "--spark-conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="Spark setting; may be repeated.",
    )
    return master(log(conf(command)))


def spark_settings(master: str, spark_log: str, spark_conf: tuple[str, ...]) -> "SparkSettings":
    """Settings from these options. Raises ConfigError if Spark is not installed."""
    require_spark()
    from penstock.pipelines.session import SparkSettings  # noqa: PLC0415

    return SparkSettings(master=master, log=spark_log, conf=dict(map(_pair, spark_conf)))


def create_brokers(
    nsqds: tuple[str, ...], lookupds: tuple[str, ...], access: HttpAccess
) -> "Brokers":
    """Brokers at these addresses; by default the nsqd on this machine. Raises ConfigError."""
    require_spark()
    from penstock.pipelines.brokers import Brokers  # noqa: PLC0415

    return Brokers(
        nsqds if nsqds or lookupds else (NSQD_HTTP_ADDRESS,),
        lookupds,
        token=access.token,
        tls_root_ca_file=access.tls_root_ca_file,
        tls_cert=access.tls_cert,
        tls_key=access.tls_key or access.tls_cert,
    )


def require_spark() -> None:
    """Raises ConfigError if a Python package that Spark needs is not installed."""
    for package in _NEEDED:
        if find_spec(package) is None:
            raise ConfigError(f"{package} is not installed: pip install 'penstock[spark]'")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--spark-conf")
    return name, value
