"""Every test in here leaves its logs sound."""

from penstock.testing.fixtures import (
    damaged_on_purpose,
    data_path,
    logs_stay_sound,
    memory_files,
)

__all__ = ["damaged_on_purpose", "data_path", "logs_stay_sound", "memory_files"]
