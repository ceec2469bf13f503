"""Opening a data set and decoding single stored samples.

Opening maps the table and reads no shard; a member is read when it is asked for, and is checked
against the table of member kinds. The loader's hot path decodes in C++ and is tested against this
room.
"""
