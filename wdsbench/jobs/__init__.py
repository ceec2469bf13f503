"""One function per command, with the command's name and options.

A job reads and writes files and returns a report; it prints nothing. Importing this package costs
nothing: torch and transformers are imported by the jobs that need them, when they run.
"""
