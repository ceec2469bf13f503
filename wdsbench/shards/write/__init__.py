"""Writes data sets: same samples, same bytes. A folder becomes a data set when its index is renamed
into place, last; every file is flushed to the disk before it is renamed.
"""
