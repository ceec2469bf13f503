"""Shards to samples that are not read yet: pieces, their assignment, rows, shuffling, as
WebDataset pipeline stages.

    PieceList ─ wds.split_by_node ─ wds.split_by_worker ─ SampleRows ─ EpochShuffle ─ wds.batched

What travels is the row of a sample in the index, an ``int``: a shuffle buffer of 1,000 traces of
13 MB holds 1,000 numbers. ``SampleMembers`` turns rows into samples of webdataset's kind whose
members are not read yet, for pipelines of one's own. Every stage is an ordinary
iterator-to-iterator callable, usable in anybody's ``wds.DataPipeline``. Order is a function of
(seed, epoch, rank, ranks, worker, workers, position) and nothing else. Nothing here imports torch.
"""

from wdsbench.shards.read.sample import read_member
from wdsbench.stream.assign import Consumer, this_consumer
from wdsbench.stream.members import SampleMembers, load_member
from wdsbench.stream.pieces import Piece, PieceList, cut_pieces
from wdsbench.stream.rows import SampleRows
from wdsbench.stream.shuffle import EpochShuffle

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
