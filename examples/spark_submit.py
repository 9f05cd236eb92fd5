"""Runs any `penstock` command under spark-submit, which requires a file.

spark-submit --master spark://10.0.0.1:7077 examples/spark_submit.py archive orders --lake /mnt/lake
"""

import sys

from penstock.cli.penstock import main

if __name__ == "__main__":
    sys.exit(main())
