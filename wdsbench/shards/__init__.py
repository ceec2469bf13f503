"""Data sets on disk: a folder of plain tar shards, ``index.json`` and a mapped table with one row
per sample.

``format`` defines the files, ``read`` opens a data set and decodes stored samples, ``write``
creates and extends one, ``check`` verifies and repairs it. Nothing here imports torch.
"""
