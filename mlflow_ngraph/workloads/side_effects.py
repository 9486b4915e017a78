"""Undo process-wide settings of a user's code, so that every lane starts alike. For child processes only.

A factory that sets a default type, a number of threads or a working directory affects the model that it builds, but not
the export, compilation and measurement afterwards. Imports torch.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_SMALLEST = 1e-40
"""A number that is 0 where those below the normal ones are flushed."""


def _flushes() -> bool:
    return not float(torch.tensor([_SMALLEST], dtype=torch.float32, device="cpu") * 1)


def _precision_of(backend: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: backend.fp32_precision, lambda value: setattr(backend, "fp32_precision", value)


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    # With none, torch says that it is the CPU; to name that one would intercept every call.
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (_flushes, torch.set_flush_denormal),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    *(
        _precision_of(getattr(torch.backends.mkldnn, kind))
        for kind in ("matmul", "conv", "rnn")
        if hasattr(getattr(torch.backends.mkldnn, kind, None), "fp32_precision")
    ),
)
"""Getters and setters of settings that change how PyTorch computes."""


def settings() -> list[Any]:
    """PyTorch's settings in this process."""
    return [get() for get, _ in _SETTINGS]


def restore(values: list[Any]) -> None:
    """Restore `settings`."""
    for (get, set_), value in zip(_SETTINGS, values, strict=True):
        if get() != value:
            set_(value)


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore PyTorch's settings after the block."""
    before = settings()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def side_effects_undone() -> Iterator[None]:
    """Restore PyTorch's settings, working directory, environment, warnings and logs after the block."""
    directory, environment, silenced = os.getcwd(), dict(os.environ), logging.root.manager.disable  # noqa: PTH109
    try:
        with settings_restored(), warnings.catch_warnings(), np.errstate():
            yield
    finally:
        os.chdir(directory)
        logging.disable(silenced)
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
