"""Penstock: NSQ in Python that remembers, with Spark built in."""

__all__ = ["NSQ_VERSION", "__version__"]

__version__ = "0.1.0"

# The NSQ release whose behaviour we reproduce, and so the version that clients and tools are told.
NSQ_VERSION = "1.3.0"
