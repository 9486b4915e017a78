import json

import pytest

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import fold, journal
from mlflow_ngraph.execute.journal import Journal


def test_events_come_back_in_order(tmp_path):
    with Journal(tmp_path) as writer:
        writer.append("one", value=1.5)
        writer.append("two", names=["a", "ü"])
    events = list(journal.read(tmp_path))
    assert [event["event"] for event in events] == ["one", "two"]
    assert events[1]["names"] == ["a", "ü"]


def test_an_event_is_on_disk_before_the_observer_hears_of_it(tmp_path):
    seen = []
    with Journal(tmp_path, lambda event: seen.append((event["event"], len(list(journal.read(tmp_path)))))) as writer:
        writer.append("first")
        writer.append("second")
    assert seen == [("first", 1), ("second", 2)]


def test_what_is_only_told_is_not_kept(tmp_path):
    heard = []
    with Journal(tmp_path, heard.append) as writer:
        writer.tell("stage", stage="compile")
    assert heard[0]["stage"] == "compile"
    assert not (tmp_path / journal.FILE_NAME).read_bytes()


def test_not_a_number_survives(tmp_path):
    with Journal(tmp_path) as writer:
        writer.append("cell", cosine=float("nan"))
    (event,) = journal.read(tmp_path)
    assert event["cosine"] != event["cosine"]


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_a_half_written_line_is_no_event_and_the_next_one_is_whole(tmp_path, cut):
    with Journal(tmp_path) as writer:
        writer.append("kept")
        writer.append("interrupted", filler="x" * 40)
    path = tmp_path / journal.FILE_NAME
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    assert [event["event"] for event in journal.read(tmp_path)] == ["kept"]
    with Journal(tmp_path) as writer:
        writer.append("after")
    assert [event["event"] for event in journal.read(tmp_path)] == ["kept", "after"]


def test_two_processes_cannot_write_one_journal(tmp_path):
    with Journal(tmp_path), pytest.raises(JournalError, match="another process"):
        Journal(tmp_path)
    Journal(tmp_path).close()


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / journal.FILE_NAME).write_text('{"event":"a"}\nnonsense\n{"event":"b"}\n')
    with pytest.raises(JournalError, match="line 2 is damaged"):
        list(journal.read(tmp_path))


def test_a_newer_schema_is_refused(tmp_path):
    line = {"event": "study_started", "schema_version": journal.SCHEMA_VERSION + 1}
    (tmp_path / journal.FILE_NAME).write_text(json.dumps(line) + "\n")
    with pytest.raises(JournalError, match="newer version"):
        fold.load(tmp_path)


def test_a_directory_without_a_study_is_named(tmp_path):
    with pytest.raises(JournalError, match=r"no journal\.jsonl here"):
        fold.load(tmp_path)
    (tmp_path / journal.FILE_NAME).touch()
    with pytest.raises(JournalError, match="killed before it began"):
        fold.load(tmp_path)
