"""The command line: each command parses options, runs a job and prints its report.

Options are declared once, as fields of the job's dataclass; ``cli.options`` builds the commands'
signatures from them. Results go to stdout, progress and notes to stderr. Importing this package
imports neither torch nor transformers.
"""
