"""The options of each shard of `--shards N`, and of each node of `--nodes`;
`penstock.nsqd.supervisor` runs their processes.

Shard 0 has the given data path, ports and node id. The number of shards can therefore change from
one to several and back without moving a file. Any other shard K has the folder `shard-K` in the
data path, ports that are PORT_STEP * K higher, and a node id that is K higher than `--node-id`.
Without `--node-id`, each shard has the node id that its data path contains.

A node of `--nodes` has the folder with its name in the data path, and ports like those of a shard.

If `--shards` is lowered, the shards with higher numbers are *retiring*: they accept no messages,
and end when their consumers have taken the messages they have. No message is lost.
"""

import os
from dataclasses import dataclass, replace

from penstock.common.addresses import PORT_MAX, has_port
from penstock.common.errors import ConfigError
from penstock.common.node_id import NODE_IDS
from penstock.nsqd.options import NsqdOptions
from penstock.storage.layout import FORMAT_NAME, maybe_shard, shard_name

__all__ = ["PORT_STEP", "Shard", "nodes_of", "shard_folders", "shards_of"]

# Distance between the ports of two shards: leaves room for TCP, HTTP and HTTPS, and avoids the
# ports of nsqlookupd and nsqadmin.
PORT_STEP = 100


@dataclass(frozen=True, slots=True)
class Shard:
    """One nsqd of several on this machine."""

    number: int
    options: NsqdOptions
    is_retiring: bool = False
    preferred_rank: int | None = None
    """For a node of `--nodes`: the place among the sorted members of the one that should lead."""


def nodes_of(options: NsqdOptions) -> list[Shard]:
    """One shard for each node of `--nodes`. Raises ConfigError."""
    names = [name.strip() for name in options.nodes.split(",")]
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(f"--nodes must be different names, not {options.nodes!r}")
    return [
        Shard(
            number,
            replace(
                _options_of(number, options),
                node=name,
                nodes="",
                data_path=os.path.join(options.data_path, name),
            ),
            preferred_rank=number,
        )
        for number, name in enumerate(names)
    ]


def shards_of(options: NsqdOptions) -> list[Shard]:
    """The configured shards and the retiring ones. A single shard has the options unchanged.

    Raises ConfigError if a port would exceed 65535.
    """
    configured = range(options.shards)
    retiring = [number for number in shard_folders(options.data_path) if number not in configured]
    if not retiring and options.shards == 1:
        return [Shard(0, options)]
    return [
        *(Shard(number, _options_of(number, options)) for number in configured),
        *(Shard(number, _retiring(_options_of(number, options)), True) for number in retiring),
    ]


def shard_folders(data_path: str) -> dict[int, str]:
    """The folders of shards in a data path, by number."""
    try:
        names = os.listdir(data_path or os.curdir)
    except OSError:
        return {}  # Opening the data path reports the error.
    numbers = sorted(number for name in names if (number := maybe_shard(name)) is not None)
    folders = {number: os.path.join(data_path, shard_name(number)) for number in numbers}
    return {
        number: folder
        for number, folder in folders.items()
        if os.path.exists(os.path.join(folder, FORMAT_NAME))
    }


def _options_of(number: int, options: NsqdOptions) -> NsqdOptions:
    return replace(
        options,
        log_prefix=_prefix(options.log_prefix, number),
        node_id=None if options.node_id is None else (options.node_id + number) % NODE_IDS,
        tcp_address=_address(options.tcp_address, number),
        http_address=_address(options.http_address, number),
        https_address=_address(options.https_address, number),
        broadcast_tcp_port=_port(options.broadcast_tcp_port, number),
        broadcast_http_port=_port(options.broadcast_http_port, number),
        data_path=os.path.join(options.data_path, shard_name(number))
        if number
        else options.data_path,
    )


def _retiring(options: NsqdOptions) -> NsqdOptions:
    """The options of a retiring shard: it drains without a timeout. SIGTERM stops it at once, and
    the next start continues the draining."""
    return replace(options, drain_timeout_ns=0, sigterm="stop")


def _prefix(prefix: str, number: int) -> str:
    """`[nsqd] ` becomes `[nsqd/1] `; the component in JSON logs is then `nsqd/1`."""
    head, bracket, tail = prefix.rpartition("]")
    return f"{head}/{number}]{tail}" if bracket else f"{prefix}[{number}] "


def _address(address: str, number: int) -> str:
    """The address for shard `number`: the port is `number` * PORT_STEP higher; the path of a unix
    socket ends in `.number`."""
    if not address or not number:
        return address
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address:
        return f"{address}.{number}"
    return f"{host}:{_port(int(port), number)}" if has_port(address) else address


def _port(port: int, number: int) -> int:
    """The port for shard `number`. Port 0, which means any free port, stays 0."""
    shifted = port + PORT_STEP * number if port else 0
    if shifted > PORT_MAX:
        raise ConfigError(
            f"port {shifted} of shard {number} exceeds {PORT_MAX}: use a lower port or fewer shards"
        )
    return shifted
