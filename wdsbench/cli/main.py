"""``wdsbench``: all commands in one program.

Exit code 0; or 1 after an error, with one line on stderr that says what is wrong and what to do; or
2 for a wrong command line. ``--traceback``, anywhere on the line, shows where an error was raised.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence

import typer

import wdsbench
from wdsbench.cli.bench import bench_command
from wdsbench.cli.demo import demo_command
from wdsbench.cli.extract import extract_command, plan_command, score_command
from wdsbench.cli.inspect import inspect_command, view_command
from wdsbench.cli.options import command_of
from wdsbench.cli.pack import pack_command, relabel_command, unpack_command
from wdsbench.cli.train import predict_command, train_command
from wdsbench.cli.verify import verify_command
from wdsbench.errors import WdsbenchError

TRACEBACK_FLAG = "--traceback"

app = typer.Typer(
    name="wdsbench",
    help=(
        "Pack language model traces into WebDataset shards, stream them at memory speed, and train"
        " detectors of hallucinated answers."
    ),
    epilog="An error is one line; --traceback, anywhere on the line, shows where it was raised.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"wdsbench {wdsbench.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    """Declare the options before a command."""


#: Commands in the order of the job; their docstrings are help text and example.
COMMANDS: tuple[Callable[..., None], ...] = (
    demo_command, extract_command, score_command, plan_command, pack_command, unpack_command,
    relabel_command, verify_command, inspect_command, view_command, train_command, predict_command,
    bench_command,
)  # fmt: skip

for run in COMMANDS:
    text, _, example = (inspect.getdoc(run) or "").rpartition("\n\nExample: ")
    name = run.__name__.removesuffix("_command")
    app.command(name, help=text, epilog=f"Example: {' '.join(example.split())}")(command_of(run))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    typer handles a wrong command line, ``--help`` and Ctrl-C; errors of data and options are
    printed here.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    show_traceback = TRACEBACK_FLAG in words
    words = [word for word in words if word != TRACEBACK_FLAG]
    try:
        app(words, prog_name="wdsbench")
    except (WdsbenchError, ValueError, OSError) as error:
        if show_traceback:
            raise
        print(f"wdsbench: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
