"""Certificates for tests, in files."""

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import trustme

__all__ = ["Authority", "Identity"]


class Identity(NamedTuple):
    """The files of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """A certificate authority; a peer with its `root_ca` trusts it."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name=name)
        self.root_ca = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.root_ca)

    def issue(
        self,
        name: str,
        *,
        common_name: str | None = None,
        is_rsa: bool = False,
        not_after: datetime | None = None,
    ) -> Identity:
        """A certificate for localhost; issuing the same name again replaces its files."""
        issued = self._authority.issue_cert(
            *("localhost", "127.0.0.1"),
            common_name=common_name,
            key_type=trustme.KeyType.RSA if is_rsa else trustme.KeyType.ECDSA,
            not_after=not_after,
        )
        identity = Identity(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        Path(identity.cert).write_bytes(chain)
        issued.private_key_pem.write_to_path(identity.key)
        return identity
