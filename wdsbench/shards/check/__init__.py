"""Verifying a data set byte by byte, and repairing what can be rebuilt from its shards.

Every problem is collected with shard, member, byte and question; nothing is changed in place. Every
byte is read once, with one sample per thread in memory.
"""
