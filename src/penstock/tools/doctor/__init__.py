"""Checks whether this machine can run Penstock, with hints for repairs."""

from penstock.tools.doctor.checks import examine
from penstock.tools.doctor.diagnosis import Diagnosis, Grade, Subject

__all__ = ["Diagnosis", "Grade", "Subject", "examine"]
