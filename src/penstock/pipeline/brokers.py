"""The nsqds that a job reads from and publishes to, as the command line names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock import names
from penstock.errors import ConfigError
from pyspark_nsq.access import Access, base_url
from pyspark_nsq.nodes import Nodes, Survey, Topics

__all__ = ["Brokers"]


@dataclass(frozen=True, slots=True)
class Brokers:
    """HTTP addresses of nsqds, of nsqlookupds that know some, or of both."""

    nsqds: tuple[str, ...] = ()
    lookupds: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def options(self) -> dict[str, str]:
        """For Spark's `format("nsq")`."""
        given = {
            "nsqd": ",".join(self.nsqds),
            "lookupd": ",".join(self.lookupds),
            "httpToken": self.token,
            "tlsRootCaFile": self.tls_root_ca_file,
            "tlsCert": self.tls_cert,
            "tlsKey": self.tls_key,
        }
        return {name: value for name, value in given.items() if value}

    def survey(self, topics: Sequence[str]) -> Survey:
        """What the nodes have of these topics, each of which one must have.

        Raises NotConnected if no node answers, and ConfigError if there is no such topic.
        """
        for topic in filter(names.is_ephemeral, topics):
            raise ConfigError(f"{topic} is ephemeral, and has no history")
        survey = self.nodes().survey(Topics(tuple(topics)))
        known = {key.topic for key in survey.logs}
        for topic in topics:
            if topic not in known:
                silent = "".join(f"; {failure}" for failure in survey.failures)
                raise ConfigError(f"there is no topic {topic}{silent}")
        return survey

    def nodes(self) -> Nodes:
        """Raises ConfigError if an address is none."""
        access = Access(
            nsqds=tuple(map(base_url, self.nsqds)),
            lookupds=tuple(map(base_url, self.lookupds)),
            http_token=self.token,
            tls_root_ca_file=self.tls_root_ca_file,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )
        return Nodes(access)
