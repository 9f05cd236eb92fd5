"""Is this machine fit to run Penstock, and what is to be done if not?"""

from penstock.tools.doctor.checks import examine
from penstock.tools.doctor.diagnosis import Diagnosis, Grade, Subject

__all__ = ["Diagnosis", "Grade", "Subject", "examine"]
