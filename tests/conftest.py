"""What every test shares: it leaves its logs sound, unless it damages them on purpose."""

from hypothesis import settings

from penstock.testing.fixtures import (
    damaged_on_purpose,
    data_path,
    logs_stay_sound,
    memory_files,
)

__all__ = ["damaged_on_purpose", "data_path", "logs_stay_sound", "memory_files"]

# A busy machine may be slow at any moment; a test that hangs is the timeout's to catch.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
