"""Opening a data set and decoding single stored samples.

The loader's hot path decodes in C++ and is tested against this room.
"""
