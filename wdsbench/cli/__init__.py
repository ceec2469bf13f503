"""The command line: one file a command, each a thin wrapper of a function for scripts."""
