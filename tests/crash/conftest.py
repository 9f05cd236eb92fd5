"""What several tests of faults share."""

from tests.crash.disks import disk, thin_disk

__all__ = ["disk", "thin_disk"]
