"""What a data set is: member kinds, index, sample table, tar rows, names and provenance.

Other rooms take every fact about the stored form from here. Nothing here reads or writes a shard.
"""
