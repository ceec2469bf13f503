"""Opening a data set, which reads no shard, and decoding single stored samples."""
