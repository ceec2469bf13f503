"""Reading, checking and writing of raw trace files.

Files are read without running any code in them, and every trace passes the same checks, whose
errors name file, trace and key. Memory is bounded by one pickle or, for files of named arrays, by
one trace. torch is imported only to read ``.pt`` files and pickled tensors.
"""
