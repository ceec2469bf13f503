"""Worker processes and their first message."""

from __future__ import annotations

import pytest

from wdsbench.processes import Channel, start_workers, stop_workers


def send_size(channel: Channel, data: bytes) -> None:
    channel.send(len(data))
    channel.receive()


# Arguments that the socket does not hold at once must not block both sides.
@pytest.mark.parametrize("fork", [True, False])
def test_arguments_larger_than_a_socket_holds(fork: bool) -> None:
    workers = start_workers(send_size, [(bytes(4_000_000),), (bytes(10),)], fork=fork)
    assert [worker.receive() for worker in workers] == [4_000_000, 10]
    stop_workers(workers)
