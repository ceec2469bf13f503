"""The format of a data set: member kinds, index, sample table, tar members, names and provenance.

Other rooms take every fact about the stored form from here. Nothing here reads or writes a shard.
"""
