"""Spark jobs: archive topics to a lake of Parquet files, replay them, report on them, query them.

Only this package and `pyspark_nsq` import Spark.
"""
