"""A disk that becomes full ends the study, costs nothing that was measured, and the study goes on when there is room."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_ngraph.execute import journal
from mlflow_ngraph.verdicts import Verdict

pytestmark = pytest.mark.long

OWN_DISK = ["unshare", "--map-root-user", "--mount"]
SCRIPT = """
mount -t tmpfs -o size=24m none "$1"
"$2" -m mlflow_ngraph benchmark "$3" --home "$1/home" --offline
echo "first $?" >&2
cp "$1"/home/studies/*/journal.jsonl "$4/first.jsonl"
mount -o remount,size=1g "$1"
"$2" -m mlflow_ngraph benchmark "$3" --home "$1/home" --offline --resume
echo "second $?" >&2
cp "$1"/home/studies/*/journal.jsonl "$4/second.jsonl"
"""
LARGE = """
import torch

def make():
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))
"""
STUDY = """
name: full-disk
workloads:
  - "block:mha?width=16"
  # Nobody knows how large it is before it is built: what certainly does not fit is refused before it begins.
  - {ref: "torch:large:make", options: {inputs: [{shape: [batch, 1024]}]}}
compilers: [onnxruntime]
batch_sizes: [1]
repetitions: 4
slice_repetitions: 2
cache: "off"
builds: alone
warmup: {window: 2, max_seconds: 0.2}
stability: {max_foreign_cpu_percent: 10000, max_spread: 1.0e9, max_drift: 1.0e9}
limits: {reload_seconds: 0}
"""


@pytest.mark.usefixtures("compilers")
def test_a_study_ends_on_a_full_disk_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk, study = tmp_path / "disk", tmp_path / "study.yaml"
    disk.mkdir()
    study.write_text(STUDY)
    (tmp_path / "large.py").write_text(LARGE)
    allowed = subprocess.run([*OWN_DISK, "mount", "-t", "tmpfs", "none", str(disk)], check=False, capture_output=True)
    if allowed.returncode:
        pytest.skip("this system lets nobody mount a disk of his own")
    command = [*OWN_DISK, "sh", "-c", SCRIPT, "sh", str(disk), sys.executable, str(study), str(tmp_path)]
    places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)
    said = done.stderr.splitlines()
    (told,) = [line for line in said if line.startswith("error: ")]
    assert "no space left on a disk" in told
    assert "go on with --resume" in told
    assert [line for line in said if line.startswith(("first ", "second "))] == ["first 1", "second 0"], done.stderr

    first, second = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("first.jsonl", "second.jsonl")
    )
    assert second[: len(first)] == first, "nothing was lost"
    finished = [event for event in first if event["event"] == "cell_finished"]
    assert len(finished) == 2, "the small model was measured, and of the large one nothing is called failed"
    ended = [event for event in second if event["event"] == "cell_finished"]
    assert {event["verdict"] for event in ended} == {Verdict.OK}
    assert len({event["cell"] for event in ended}) == len(ended) == 4


def test_half_an_event_is_taken_back(tmp_path: Path) -> None:
    with journal.Journal(tmp_path) as written:
        written.append("study", id="one")
        size = written.path.stat().st_size
        real = written._file

        class Short:
            """A file on a disk that takes three more bytes."""

            def write(self, content: bytes) -> int:
                if os.fstat(real.fileno()).st_size >= size + 3:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real.write(content[:3])

            def fileno(self) -> int:
                return real.fileno()

        written._file = Short()  # type: ignore[assignment]
        with pytest.raises(Exception, match="no space left on a disk while writing the journal"):
            written.append("study", id="two")
        written._file = real
        assert written.path.stat().st_size == size
        written.append("study", id="three")
    assert [event["id"] for event in journal.read(tmp_path)] == ["one", "three"]
