"""Raw trace files in, checked ``Trace`` records out.

Files are read without running anything that they name, and every trace passes the same checks;
errors name file, trace and key. Memory is bounded by one pickle or, for files of named arrays, by
one trace. Nothing here imports torch, except to read ``.pt`` files and pickled tensors.
"""
