"""Connect to the engine, Ray or Slurm, that takes a fleet's jobs to its devices, as its description names it."""

from __future__ import annotations

from mlflow_ngraph_fleet.description import Fleet
from mlflow_ngraph_fleet.engine import Engine


def connect(fleet: Fleet, *, insecure: bool = False) -> Engine:
    """The engine of a fleet, once it has answered.

    Parameters
    ----------
    insecure : bool
        Accept an engine that lets in everybody.

    Raises
    ------
    FleetError
        It refuses, or it is open to everybody.
    FleetAwayError
        It does not answer.
    DependencyError
        The engine's client is not installed.
    """
    if fleet.engine == "slurm":
        from mlflow_ngraph_fleet.slurm_engine import SlurmEngine

        return SlurmEngine(fleet)
    from mlflow_ngraph_fleet.ray_engine import RayEngine

    return RayEngine.connect(fleet, insecure=insecure)
