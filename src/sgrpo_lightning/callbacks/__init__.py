"""Callbacks: evaluation, records, progress, exact resume."""

from sgrpo_lightning.callbacks.checkpoint import RunCheckpoint
from sgrpo_lightning.callbacks.contact_sheet import ContactSheet
from sgrpo_lightning.callbacks.export import PolicyExport
from sgrpo_lightning.callbacks.held_out import HeldOutEvaluation, ImageEvaluation
from sgrpo_lightning.callbacks.plots import TrainingPlot
from sgrpo_lightning.callbacks.progress import IterationProgress
from sgrpo_lightning.callbacks.run_log import IterationLog, RunLogger
from sgrpo_lightning.callbacks.samples import SampleFiles, SampleTable
from sgrpo_lightning.callbacks.state import GracefulStop, RandomState

__all__ = [
    "ContactSheet",
    "GracefulStop",
    "HeldOutEvaluation",
    "ImageEvaluation",
    "IterationLog",
    "IterationProgress",
    "PolicyExport",
    "RandomState",
    "RunCheckpoint",
    "RunLogger",
    "SampleFiles",
    "SampleTable",
    "TrainingPlot",
]
