"""What several tests of faults share."""

from tests.crash.disks import disk

__all__ = ["disk"]
