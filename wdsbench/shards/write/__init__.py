"""Writes data sets: shards, sample table and index; appends to them and replaces their labels.

Same samples, same bytes; a folder becomes a data set when its index is renamed into place, last.
Every file is flushed to the disk before it is renamed, in the background while the next is written.
"""
