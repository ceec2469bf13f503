"""WebDataset stages from shards to samples that are not read yet: pieces, assignment, rows, order.

    PieceList ─ wds.split_by_node ─ wds.split_by_worker ─ SampleRows ─ EpochShuffle ─ wds.batched

Stages pass the row of a sample in the index, an ``int``, so a shuffle buffer of 1,000 traces of 13
MB holds 1,000 numbers; ``SampleMembers`` turns rows into webdataset samples whose members are not
read yet. Every stage is a callable from iterator to iterator that works in any
``wds.DataPipeline``. Order is a function of (seed, epoch, rank, ranks, worker, workers, position)
only, and nothing here imports torch.
"""

from wdsbench.shards.read.sample import load_member, read_member
from wdsbench.stream.assign import Consumer, this_consumer
from wdsbench.stream.order import EpochShuffle
from wdsbench.stream.pieces import Piece, PieceList, SampleMembers, SampleRows, cut_pieces

__all__ = [
    "Consumer",
    "EpochShuffle",
    "Piece",
    "PieceList",
    "SampleMembers",
    "SampleRows",
    "cut_pieces",
    "load_member",
    "read_member",
    "this_consumer",
]
