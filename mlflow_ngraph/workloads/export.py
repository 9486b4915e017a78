"""Prepare a workload: build it once, export it, and compute the reference outputs. For child processes only."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.errors import NGraphError, UnsupportedError, WorkloadError
from mlflow_ngraph.workloads import formats, weights
from mlflow_ngraph.workloads.base import BATCH, Format, TensorSpec, Workload
from mlflow_ngraph.workloads.calling import FlatOutputs, arrays, is_flat, tensors
from mlflow_ngraph.workloads.describe import inspect
from mlflow_ngraph.workloads.materials import WEIGHTS, Export, Materials, Source, arrays_file
