"""Calibration data: where samples come from, how they are brought into a model's inputs.

dataset = open_dataset("calibration/resnet50", specs_of_graph(graph), config.preprocessing)
for sample in dataset: ...            # {input name: array in the model's own shape}
"""

from .dataset import Dataset, FileDataset, Mapped, RandomDataset, Subset, open_dataset
from .digest import combine, sample_digest
from .inspection import FolderSummary, Problem, inspect_folder
from .make_calib import make_calib, make_calib_man
from .preprocessing import Pipeline, Preprocessing
from .random_data import RandomSpec
from .spec import InputSpec, Limits, infer_layout, specs_of_graph

__all__ = [
    "Dataset",
    "FileDataset",
    "FolderSummary",
    "InputSpec",
    "Limits",
    "Mapped",
    "Pipeline",
    "Preprocessing",
    "Problem",
    "RandomDataset",
    "RandomSpec",
    "Subset",
    "combine",
    "infer_layout",
    "inspect_folder",
    "make_calib",
    "make_calib_man",
    "open_dataset",
    "sample_digest",
    "specs_of_graph",
]
