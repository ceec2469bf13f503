"""One function per command, with the command's name and options: ``jobs.pack(PackJob(...))``.

A job validates its options, reads and writes files and returns a report; it prints nothing. Errors
are those of the command. Importing this package imports neither torch nor transformers: the jobs
that need them import them when they run.
"""

from wdsbench.jobs.extract import ExtractJob, ScoreJob, extract, score
from wdsbench.jobs.pack import PackJob, RelabelJob, UnpackJob, pack, relabel, unpack
from wdsbench.jobs.plan import PlanJob, plan
from wdsbench.jobs.train import PredictJob, TrainJob, predict, predict_images, train
from wdsbench.jobs.verify import InspectJob, VerifyJob, inspect, verify
from wdsbench.jobs.view import ViewJob, view

__all__ = [
    "ExtractJob",
    "InspectJob",
    "PackJob",
    "PlanJob",
    "PredictJob",
    "RelabelJob",
    "ScoreJob",
    "TrainJob",
    "UnpackJob",
    "VerifyJob",
    "ViewJob",
    "extract",
    "inspect",
    "pack",
    "plan",
    "predict",
    "predict_images",
    "relabel",
    "score",
    "train",
    "unpack",
    "verify",
    "view",
]
