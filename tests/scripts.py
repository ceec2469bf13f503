"""Python scripts in processes of their own: for what may crash, hang or be killed."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from forks import Forked, start_code, start_file

TESTS = Path(__file__).parent

#: A script that takes longer hangs; no test asserts how long one takes.
HANGS_SECONDS = 40.0


def run_code(code: str, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with ``arguments`` in ``sys.argv[1:]``; with ``check`` it must end well."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_SECONDS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


def run_file(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script file, as a user does; whoever it has started is ended when it hangs."""
    command = [sys.executable, str(path), *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=HANGS_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def fork_code(code: str, *arguments: object) -> None:
    """Run ``code`` as `run_code` does, in a process that has imported torch; it must end well."""
    strict = "import warnings; warnings.simplefilter('error', UserWarning)\n"
    done = _done(start_code(strict + code, *arguments))
    assert done.returncode == 0, done.stderr


def fork_file(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script file in a process that has imported torch."""
    return _done(start_file(path, *arguments))


def _done(process: Forked) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=HANGS_SECONDS)
    return subprocess.CompletedProcess([], process.returncode or 0, out, err)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Return whether ``condition`` became true before the time was over."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def open_files(*, collect: bool = True) -> int:
    """Return how many descriptors this process has open; with ``collect`` without garbage's."""
    if collect:
        gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def free_port() -> int:
    """Return a TCP port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def rank_environments(ranks: int) -> list[dict[str, str]]:
    """Return what a launcher sets for each of ``ranks`` processes on this machine."""
    place = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    return [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_ranks(code: str, *arguments: object, ranks: int = 2) -> None:
    """Run ``code`` as ``ranks`` processes that train together; all must end well."""
    processes = [
        start_code(code, *arguments, **environment) for environment in rank_environments(ranks)
    ]
    try:
        for process in processes:
            _, err = process.communicate(timeout=HANGS_SECONDS)
            assert process.returncode == 0, err
    finally:
        for process in processes:
            process.kill()
