"""Compiler whose engines are slightly wrong, to test verification.

It compiles as TorchScript does. It is not registered; whoever wants it by name puts
``broken = mlflow_ngraph_testing.broken:BrokenCompiler`` into the entry-point group ``mlflow_ngraph.compilers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from mlflow_ngraph.compilers.base import Build, Flags, Target, Workbench
from mlflow_ngraph.compilers.torchscript import FILE, TorchScript, TorchScriptFlags
from mlflow_ngraph.workloads.materials import Source

if TYPE_CHECKING:
    import torch

Damage = Literal["number", "weight", "swapped", "dropped", "clipped", "repeated", "rounded"]


class BrokenFlags(TorchScriptFlags):
    """Kind and place of the engine's fault."""

    damage: Damage = "number"
    """``number``: one number of a weight is 1 % too large. ``weight``: all numbers of one weight are. ``swapped``: two
    output channels of a weight have changed places. ``dropped``: of a sum of two branches or of a ``where`` the second
    side is missing. ``clipped``: an activation ends at ``limit``. ``repeated``: the last sample of a batch gets the
    outputs of the one before. ``rounded``: all weights went through bf16."""
    place: int = 0
    """Seeds which layer, channels, branch or activation it is."""
    limit: float = 6.0
    """Largest output of a clipped activation."""


class BrokenCompiler(TorchScript):
    """TorchScript with one fault."""

    name: ClassVar[str] = "broken"
    summary: ClassVar[str] = "TorchScript, damaged as told"
    flags_type: ClassVar[type[Flags]] = BrokenFlags

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        """Compile with TorchScript.

        Raises
        ------
        UnsupportedError
            The model has nothing that can be damaged in this way.
        """
        from mlflow_ngraph_testing import damage

        flags = self.flags
        assert isinstance(flags, BrokenFlags)
        build = super().compile(_Damaged(source.directory, flags), batch_sizes, target, directory, bench)
        damage.graph(directory / FILE, flags.damage, flags.place, flags.limit, source.example(batch_sizes[0]))
        return build


class _Damaged(Source):
    """A prepared workload with other weights than those it was prepared with."""

    def __init__(self, directory: Path, flags: BrokenFlags) -> None:
        super().__init__(directory)
        self._flags = flags

    def module(self) -> torch.nn.Module:
        from mlflow_ngraph_testing import damage

        return damage.weights(super().module(), self._flags.damage, self._flags.place)
