"""Writing a data set: claiming the folder, shards, flushing, the journal, and label tables.

A folder without ``index.json`` is not a data set; the index is renamed into place last.
"""
