"""Which studies can be gone on with."""

import os
import re
from pathlib import Path

import pytest

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import study_directories
from mlflow_ngraph.execute.journal import FILE_NAME
from mlflow_ngraph.home import IMPORTED_FROM
from mlflow_ngraph.study import Study
from tests.support.script import Script


def ended(*events: str) -> Script:
    script = Script([1]).measured("identity", 1, 10)
    for event in events:
        script.session() if event == "session_started" else script.say(event, offline=False)
    return script


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([], "open"),
        (["study_interrupted"], "open"),
        (["study_interrupted", "lane_recorded"], "open"),
        (["study_finished"], "measured"),
        (["study_finished", "lane_recorded", "recording_failed", "lane_recorded"], "measured"),
        (["study_finished", "lane_recorded", "study_recorded"], "recorded"),
        (["study_finished", "recording_failed", "study_recorded"], "recorded"),
        (["study_finished", "study_recorded", "session_started"], "open"),
        (["study_finished", "session_started", "study_interrupted", "recording_failed"], "open"),
        (["study_interrupted", "session_started", "study_finished", "study_recorded"], "recorded"),
    ],
)
def test_a_study_has_ended_when_it_is_recorded(tmp_path: Path, events: list[str], end: str) -> None:
    assert study_directories.end(ended(*events).write(tmp_path)) == end


def test_a_study_that_nobody_wants_recorded_has_ended_when_it_is_measured(tmp_path: Path) -> None:
    assert study_directories.end(ended().say("study_finished", offline=True).write(tmp_path)) == "recorded"


def test_the_end_of_a_journal_says_whether_its_study_is_finished(tmp_path: Path) -> None:
    """However long a journal is, no more than that is read: damage further up is not met."""
    path = ended("study_finished").write(tmp_path) / FILE_NAME
    first, _, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "nonsense\n", *rest]))
    assert study_directories.end(tmp_path) == "measured"


def test_the_newest_study_is_the_one_that_began_last(tmp_path: Path) -> None:
    for name, at in (("a-key-1", 10.0), ("b-key-2", 30.0), ("c-key-3", 20.0), ("d-other-4", 40.0)):
        Script([1], study_id=name, at=at).write(tmp_path / "studies" / name)
    (tmp_path / "studies/e-key-5").mkdir()
    (tmp_path / "studies/f-key-6").mkdir()
    (tmp_path / "studies/f-key-6" / FILE_NAME).touch()  # killed before it began
    os.utime(tmp_path / "studies/a-key-1" / FILE_NAME)
    assert study_directories.newest(tmp_path, "key", "") == tmp_path / "studies/b-key-2"
    assert study_directories.newest(tmp_path, "none", "") is None
    assert study_directories.newest(tmp_path, "key", "another") is None
    (tmp_path / "studies/b-key-2" / IMPORTED_FROM).write_text("/media/stick/t.tar: not signed")
    assert study_directories.newest(tmp_path, "key", "") == tmp_path / "studies/c-key-3"


def test_equal_machines_that_begin_at_once_name_their_studies_apart(tmp_path: Path) -> None:
    homes = [tmp_path / str(number) for number in range(20)]
    quick = Study(name="quick", workloads=["block:mha"], compilers=["identity"], batch_sizes=[1])
    names = []
    for home in homes:
        (home / "studies").mkdir(parents=True)
        names.append(study_directories.new_directory(home, quick, "0123abcd").name)
    assert len(set(names)) == len(names)
    stamps = [name.rpartition("-")[0] for name in names]
    assert stamps == sorted(stamps)
    assert all(re.fullmatch(r"quick-0123abcd-\d{8}-\d{6}-[0-9a-f]{8}", name) for name in names)


def test_a_directory_without_a_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"no journal\.jsonl here"):
        study_directories.end(tmp_path)


def test_an_end_that_lacks_what_it_should_say_is_refused_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"journal\.jsonl: study_finished does not say whether it was offline"):
        study_directories.end(ended().say("study_finished").write(tmp_path))
