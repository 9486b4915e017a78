"""An engine that turns out to be slower than anybody expected does not hold up a study while it is verified."""

from pathlib import Path

import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.lane_engines import TRIAL_ROOM
from mlflow_ngraph.study import parse
from mlflow_ngraph.verdicts import Verdict

LIMIT_S = 0.2


@pytest.mark.usefixtures("fake_compiler", "processes")
def test_a_trial_that_takes_too_long_is_cut_off_and_the_timed_inputs_alone_are_compared(tmp_path: Path) -> None:
    slow = {"name": "fake", "flags": {"at": "run", "delay_ms": 3 * LIMIT_S * 1e3}}
    given = {
        "name": "slow",
        "workloads": ["block:mha?width=16"],
        "compilers": [slow],
        "batch_sizes": [1, 2],
        "repetitions": 1,
        "warmup": {"window": 2, "max_seconds": 0.1},
        "limits": {"verify_seconds": LIMIT_S, "reload_seconds": 0},
    }
    outcome = runner.run_study(parse(given), home=tmp_path, offline=True)
    (lane,) = [lane for lane in outcome.record.lanes.values() if lane.lane.compiler == "fake"]
    assert {cell.verdict for cell in lane.cells.values()} == {Verdict.OK}
    assert all("the timed inputs alone" in (cell.reason or "") for cell in lane.cells.values())
    verified = [event for event in journal.read(outcome.directory) if event["event"] == "cell_verified"]
    of_lane = {event["batch"]: event for event in verified if event["lane"] == lane.lane.id}
    assert [event["too_slow"] for event in of_lane.values()] == [True, True]
    # The first was found out, the second known.
    assert of_lane[1]["seconds"] >= TRIAL_ROOM * LIMIT_S
    assert of_lane[2]["seconds"] == 0
