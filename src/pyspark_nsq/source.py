"""What Spark calls for `format("nsq")`.

Spark pickles the class by its name and makes it in processes of its own, so it keeps the options as
they are and parses them where they are needed.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_nsq.batch_reader import BatchReader
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.rows import SCHEMA
from pyspark_nsq.stream_reader import StreamReader

__all__ = ["NsqDataSource"]


class NsqDataSource(DataSource):
    """NSQ topics as tables, with their history: docs/spark.md has the options."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(SourceOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(SourceOptions.parse(self.options, streaming=True))
