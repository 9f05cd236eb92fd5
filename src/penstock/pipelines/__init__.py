"""Jobs on Spark: topics archived to a lake of Parquet files, replayed from it, and queried.

With `pyspark_nsq`, the only part of Penstock that knows Spark.
"""
