"""`penstock cluster`: status and administration of replicated nodes."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.command_options import DURATION, CommandWithExamples, HttpAccess, http_access
from penstock.common.errors import ConfigError, ReplicationError

if TYPE_CHECKING:
    from penstock.admin_api.replicated_nodes import (
        MemberStatus,
        NodeStatus,
        ReplicatedNodes,
    )
    from penstock.replication.etcd_client import EtcdConfig
    from penstock.replication.status import FollowerStatus

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])


def _cluster_options(function: F) -> F:
    """Add the options for etcd and the cluster; the function gets `nodes` instead of them."""

    @wraps(function)
    def with_nodes(
        *args: Any,
        etcd: tuple[str, ...],
        cluster: str,
        etcd_user: str,
        etcd_password_file: str,
        etcd_tls_root_ca_file: str,
        access: HttpAccess,
        **kwargs: Any,
    ) -> Any:
        config = _etcd_config(etcd, etcd_user, etcd_password_file, etcd_tls_root_ca_file, access)
        nodes = _replicated_nodes(config, cluster, access)
        return function(*args, nodes=nodes, **kwargs)

    options = (
        click.option(
            "--etcd",
            multiple=True,
            required=True,
            envvar="PENSTOCK_ETCD",
            metavar="URL",
            help="URL of an etcd server; repeatable, or separated by commas.",
        ),
        click.option(
            "--cluster",
            required=True,
            envvar="PENSTOCK_CLUSTER",
            metavar="NAME",
            help="Name of the cluster, as in nsqd --cluster.",
        ),
        click.option(
            "--etcd-user",
            default="",
            envvar="PENSTOCK_ETCD_USER",
            metavar="NAME",
            help="User name for etcd.",
        ),
        click.option(
            "--etcd-password-file",
            default="",
            envvar="PENSTOCK_ETCD_PASSWORD_FILE",
            metavar="FILE",
            help="File with the password for etcd.",
        ),
        click.option(
            "--etcd-tls-root-ca-file",
            default="",
            envvar="PENSTOCK_ETCD_TLS_ROOT_CA_FILE",
            metavar="FILE",
            help="CA bundle for verifying etcd at https URLs [default: the system's]; --tls-cert "
            "is the client certificate.",
        ),
        http_access,
    )
    wrapped: Callable[..., Any] = with_nodes
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _replicated_nodes(config: "EtcdConfig", cluster: str, access: HttpAccess) -> "ReplicatedNodes":
    from penstock.admin_api.replicated_nodes import ReplicatedNodes  # noqa: PLC0415
    from penstock.cli.cluster_access import build_http_client  # noqa: PLC0415

    return ReplicatedNodes(config, cluster, build_http_client(access), access.headers)


def _etcd_config(
    etcd: tuple[str, ...], user: str, password_file: str, root_ca_file: str, access: HttpAccess
) -> "EtcdConfig":
    from penstock.net.tls import client_context  # noqa: PLC0415
    from penstock.replication.etcd_client import EtcdConfig  # noqa: PLC0415

    try:
        password = Path(password_file).read_text().strip() if password_file else ""
    except OSError as error:
        raise ConfigError(f"cannot read {password_file}: {error.strerror}") from error
    urls = tuple(url for each in etcd for url in each.split(",") if url)
    tls = None
    if any(url.startswith("https://") for url in urls):
        tls = client_context(root_ca=root_ca_file, cert=access.tls_cert, key=access.tls_key)
    return EtcdConfig(urls, user, password, tls)


@click.group("cluster")
def command() -> None:
    """Show and administer replicated nodes.

    The commands read the members and the leader of every node from etcd.
    """


@command.command(
    "status",
    cls=CommandWithExamples,
    examples=["penstock cluster status --etcd http://10.0.0.1:2379 --cluster shop"],
)
@_cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as one JSON list.")
def status(*, nodes: "ReplicatedNodes", as_json: bool) -> None:
    """Show all nodes: leader, epoch, members and lag.

    The lag is that of the slowest follower, in messages and seconds. It is '-' if the leader cannot
    be reached over HTTP. Members that are not running are marked.
    """
    found = _load(nodes, as_json=as_json)
    _print_table(
        ("node", "leader", "epoch", "in sync", "members", "lag"),
        [
            (
                each.node,
                each.leader or "none",
                str(each.epoch),
                " ".join(each.in_sync),
                " ".join(map(_shown_member, each.members)),
                _node_lag(each),
            )
            for each in found
        ],
        as_json=as_json,
    )


@command.command(
    "members",
    cls=CommandWithExamples,
    examples=["penstock cluster members --etcd http://10.0.0.1:2379 --cluster shop"],
)
@_cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as one JSON list.")
def members(*, nodes: "ReplicatedNodes", as_json: bool) -> None:
    """Show all members: addresses, role, version and lag."""
    found = _load(nodes, as_json=as_json)
    _print_table(
        ("node", "member", "role", "in sync", "tcp", "http", "version", "lag"),
        [
            (
                node.node,
                each.member,
                _role(each),
                "yes" if each.is_in_sync else "no",
                each.tcp_address or "-",
                each.http_address or "-",
                each.version or "-",
                "-" if each.is_leader else _lag(each.replication),
            )
            for node in found
            for each in node.members
        ],
        as_json=as_json,
    )


@command.command(
    "move",
    cls=CommandWithExamples,
    examples=["penstock cluster move orders-1 b --etcd http://10.0.0.1:2379 --cluster shop"],
)
@click.argument("node", metavar="NODE")
@click.argument("member", metavar="MEMBER")
@_cluster_options
@click.option(
    "--timeout",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Maximum time to wait for the new leader.",
)
def move(node: str, member: str, *, nodes: "ReplicatedNodes", timeout: float) -> None:
    """Make MEMBER the leader of NODE.

    The leader hands over once MEMBER is in sync. MEMBER stays the preferred leader: after a failure
    it leads again as soon as it is in sync. Waits until it leads.
    """
    import asyncio  # noqa: PLC0415

    view = asyncio.run(nodes.move(node, member))
    if view.record is not None and member not in view.record.in_sync_members:
        click.echo(f"{member} is not in sync yet, and takes over once it is", err=True)
    if not asyncio.run(nodes.wait_for_leader(node, member, timeout)):
        raise ReplicationError(
            f"{member} does not lead {node} after {timeout:g} s; it takes over once it is running "
            "and in sync"
        )
    click.echo(f"{member} leads {node}", err=True)


@command.command(
    "force-leader",
    cls=CommandWithExamples,
    examples=[
        "penstock cluster force-leader orders-1 c --etcd http://10.0.0.3:2379 --cluster shop"
    ],
)
@click.argument("node", metavar="NODE")
@click.argument("member", metavar="MEMBER")
@_cluster_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--timeout",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Maximum time to wait for the new leader.",
)
def force(node: str, member: str, *, nodes: "ReplicatedNodes", yes: bool, timeout: float) -> None:
    """Make MEMBER the leader; acknowledged messages may be lost.

    Only for a node whose members in sync are all lost. MEMBER must be running. The command refuses
    if a member that is in sync is running.
    """
    import asyncio  # noqa: PLC0415

    from penstock.admin_api.replicated_nodes import check_can_force  # noqa: PLC0415

    record, view = asyncio.run(nodes.view(node))
    check_can_force(node, member, record, view)
    in_sync = ", ".join(sorted(record.in_sync_members))
    click.echo(
        f"{member} may lack messages that were acknowledged while it was not in sync. They are "
        f"lost, and so is the progress of channels since then: they are only on {in_sync}. The "
        f"other members will follow {member}, and move what it does not have to .cut files.",
        err=True,
    )
    if not yes:
        _confirm(f"Make {member} the leader of {node}?")
    asyncio.run(nodes.force_leader(node, member))
    if not asyncio.run(nodes.wait_for_leader(node, member, timeout)):
        raise ReplicationError(
            f"the record is changed, but {member} does not lead {node} after {timeout:g} s: read "
            "its log"
        )
    click.echo(f"{member} leads {node}", err=True)


@command.command(
    "remove-member",
    cls=CommandWithExamples,
    examples=[
        "penstock cluster remove-member orders-1 c --etcd http://10.0.0.1:2379 --cluster shop"
    ],
)
@click.argument("node", metavar="NODE")
@click.argument("member", metavar="MEMBER")
@_cluster_options
def remove(node: str, member: str, *, nodes: "ReplicatedNodes") -> None:
    """Remove MEMBER, which will not return, from NODE.

    The member must be stopped, and must not be the leader.
    """
    import asyncio  # noqa: PLC0415

    asyncio.run(nodes.remove_member(node, member))
    click.echo(f"removed {member} from {node}", err=True)


def _load(nodes: "ReplicatedNodes", *, as_json: bool) -> "list[NodeStatus]":
    import asyncio  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    found = asyncio.run(nodes.status())
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    for each in found:
        if each.error:
            click.echo(f"penstock: {each.error}", err=True)
    return found


def _print_table(heading: tuple[str, ...], rows: list[tuple[str, ...]], *, as_json: bool) -> None:
    from penstock.tools.display import format_table  # noqa: PLC0415

    if not as_json:
        for line in format_table([heading, *rows]):
            click.echo(line)


def _shown_member(member: "MemberStatus") -> str:
    return member.member if member.is_alive else f"{member.member}(down)"


def _role(member: "MemberStatus") -> str:
    if not member.is_alive:
        return "down"
    return "leader" if member.is_leader else "follower"


def _node_lag(node: "NodeStatus") -> str:
    return _lag(node.status.slowest_follower) if node.status is not None else "-"


def _lag(follower: "FollowerStatus | None") -> str:
    from penstock.tools.display import format_count  # noqa: PLC0415

    if follower is None or follower.lag_messages is None:
        return "-"
    if follower.catch_up_bytes_total:
        sent = follower.catch_up_bytes_sent or 0
        return f"catching up, {100 * sent // follower.catch_up_bytes_total} %"
    if not follower.lag_messages:
        return "0"
    age = f", {follower.lag_seconds:.1f} s" if follower.lag_seconds is not None else ""
    return f"{format_count(follower.lag_messages, 'message')}{age}"


def _confirm(question: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("no terminal to ask for confirmation: pass --yes")
    click.confirm(question, abort=True, err=True)
