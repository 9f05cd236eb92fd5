"""What Spark calls for `format("nsq")`.

Spark pickles the class by its name and makes it in processes of its own, so it keeps the options as
they are and parses them where they are needed.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.common.errors import ConfigError
from pyspark_nsq.batch_reader import batch_reader
from pyspark_nsq.channel_reader import ChannelReader
from pyspark_nsq.options import SinkOptions, SourceOptions
from pyspark_nsq.outgoing import check_columns
from pyspark_nsq.rows import SCHEMA
from pyspark_nsq.stream_reader import StreamReader
from pyspark_nsq.writers import BatchWriter, StreamWriter

__all__ = ["NsqDataSource"]


class NsqDataSource(DataSource):
    """NSQ topics as tables, with their history: docs/spark.md has the options."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        return SCHEMA

    # Spark's names.

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options, streaming=False)
        if options.mode == "channel":
            raise ConfigError("mode=channel is for readStream: a channel is consumed by reading it")
        return batch_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = SourceOptions.parse(self.options, streaming=True)
        return ChannelReader(options) if options.mode == "channel" else StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigError("a topic cannot be overwritten: use mode append")
        return BatchWriter(self._sink_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(self._sink_options(schema))

    def _sink_options(self, schema: StructType) -> SinkOptions:
        options = SinkOptions.parse(self.options)
        check_columns(schema, options.topic)
        return options
