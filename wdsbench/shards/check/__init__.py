"""Verifying a data set byte by byte, and repairing what can be rebuilt from its shards."""
