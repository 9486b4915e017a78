import errno
import resource
import tracemalloc
from typing import Any

import pytest

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.journal import Journal
from tests.support.script import Script, lines


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


def test_a_clock_that_is_set_back_takes_no_event_before_an_earlier_one(tmp_path, monkeypatch):
    for now in (5000.0, 4000.0, 6000.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        with Journal(tmp_path) as writer:
            writer.append("one")
            monkeypatch.setattr("time.time", lambda now=now: now - 100.0)
            writer.append("two")
    assert [event["at"] for event in journal.read(tmp_path)] == [5000.0] * 4 + [6000.0] * 2


def test_what_is_only_told_is_not_kept(tmp_path):
    heard: list[dict[str, Any]] = []
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


def test_a_reader_goes_on_where_it_ended(tmp_path):
    reader = journal.Reader(tmp_path)
    with Journal(tmp_path) as writer:
        writer.append("first", name="ü")
        assert [event["event"] for event in reader.new()] == ["first"]
        assert list(reader.new()) == []
        writer.append("second")
        writer.append("third")
        assert next(reader.new())["event"] == "second"
        assert [event["event"] for event in reader.new()] == ["third"]


def test_a_reader_takes_a_half_written_line_once_it_is_whole(tmp_path):
    path, reader = tmp_path / journal.FILE_NAME, journal.Reader(tmp_path)
    content = lines({"event": "a"}, {"event": "b"})
    path.write_bytes(content[:-9])
    assert [event["event"] for event in reader.new()] == ["a"]
    with path.open("ab") as file:
        file.write(content[-9:] + b"nonsense\n")
    new = reader.new()
    assert next(new)["event"] == "b"
    with pytest.raises(JournalError, match="line 3 is damaged"):
        next(new)


@pytest.mark.parametrize("half", ["", '{"event":"cut', "x" * 200_000])
def test_the_last_event_is_read_first_backwards(tmp_path, half):
    """Lines shorter and longer than what is read at once."""
    with Journal(tmp_path) as writer:
        for length in (0, 10, 200_000, 3, 70_000, 0):
            writer.append("event", filler="ü" * length)
    with (tmp_path / journal.FILE_NAME).open("a") as file:
        file.write(half)
    assert list(journal.read_backwards(tmp_path)) == list(journal.read(tmp_path))[::-1]
    Journal(tmp_path).close()
    assert len(list(journal.read_backwards(tmp_path))) == len(list(journal.read(tmp_path))) == 6
    assert (tmp_path / journal.FILE_NAME).read_bytes().endswith(b"}\n")


def test_no_more_is_read_than_asked_for(tmp_path):
    first, last = lines({"event": "a"}, {"event": "z"}).splitlines(keepends=True)
    (tmp_path / journal.FILE_NAME).write_bytes(first + b"nonsense\n" * 100_000 + last)
    assert journal.first(tmp_path) == next(journal.read(tmp_path)) == {"event": "a"}
    assert next(journal.read_backwards(tmp_path)) == {"event": "z"}


def test_a_long_journal_is_never_in_memory_as_a_whole(tmp_path):
    (tmp_path / journal.FILE_NAME).write_bytes(lines(*({"event": "slice", "filler": "x" * 50_000} for _ in range(200))))
    for read in (journal.read, journal.read_backwards):
        tracemalloc.start()
        assert sum(1 for _ in read(tmp_path)) == 200
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1_000_000, "of ten millions"


def test_an_empty_journal_has_no_events(tmp_path):
    path = tmp_path / journal.FILE_NAME
    for content in ("", '{"event":"cut'):
        path.write_text(content)
        assert journal.first(tmp_path) is None
        assert list(journal.read(tmp_path)) == list(journal.read_backwards(tmp_path)) == []


@pytest.mark.parametrize("read", [journal.read, journal.read_backwards])
@pytest.mark.parametrize("line", ["nonsense", "5", "", '{"event":', "[]", "{}", '{"event":"x"}', "[" * 100_000])
def test_what_is_no_event_is_damage(tmp_path, read, line):
    first, last = lines({"event": "a"}, {"event": "b"}).splitlines(keepends=True)
    (tmp_path / journal.FILE_NAME).write_bytes(first + line.encode() + b"\n" + last)
    with pytest.raises(JournalError, match="is damaged"):
        list(read(tmp_path))


def test_a_limit_of_file_sizes_names_the_journal_and_leaves_no_half_event(tmp_path):
    with Journal(tmp_path) as writer:
        writer.append("first")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        try:
            with pytest.raises(OSError, match="File too large") as caught:
                writer.append("second", text="x" * 1000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(writer.path))
        writer.append("third")
    assert [event["event"] for event in journal.read(tmp_path)] == ["first", "third"]


def test_two_processes_cannot_write_one_journal(tmp_path):
    with Journal(tmp_path), pytest.raises(JournalError, match="another process"):
        Journal(tmp_path)
    Journal(tmp_path).close()


WRITTEN = lines(*({"event": "slice", "durations_ns": [4921224 + place, 7]} for place in range(5))).splitlines(
    keepends=True
)


@pytest.mark.parametrize(
    ("harmed", "named"),
    [
        ([*WRITTEN[:2], WRITTEN[2].replace(b"4921226", b"9921226"), *WRITTEN[3:]], 3),
        ([*WRITTEN[:2], *WRITTEN[3:]], 3),
        (WRITTEN[1:], 1),
        ([*WRITTEN[:2], WRITTEN[3], WRITTEN[2], WRITTEN[4]], 3),
        ([*WRITTEN[:2], WRITTEN[1], *WRITTEN[2:]], 3),
        ([*WRITTEN[:2], b"nonsense\n", *WRITTEN[2:]], 3),
        ([*WRITTEN[:4], WRITTEN[4].replace(b'check":"', b'check":"0')], 5),
    ],
    ids=["changed", "lost", "begun later", "swapped", "doubled", "put in", "check"],
)
def test_a_line_that_was_changed_lost_moved_or_put_in_is_named(tmp_path, harmed, named):
    (tmp_path / journal.FILE_NAME).write_bytes(b"".join(harmed))
    with pytest.raises(JournalError, match=rf"journal\.jsonl: line {named} is damaged"):
        list(journal.read(tmp_path))


def test_a_journal_goes_on_with_the_check_of_its_last_line(tmp_path):
    for number in range(3):
        with Journal(tmp_path) as writer:
            writer.append("one", number=number)
            writer.append("two", number=number)
    assert [(event["event"], event["number"]) for event in journal.read(tmp_path)] == [
        (name, number) for number in range(3) for name in ("one", "two")
    ]
    path = tmp_path / journal.FILE_NAME
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(JournalError, match="the last line is damaged"):
        Journal(tmp_path)
    path.write_bytes(path.read_bytes()[: -len(b"nonsense\n")])
    Journal(tmp_path).close()


@pytest.mark.parametrize("cut", range(1, 200))
def test_wherever_a_journal_is_cut_it_goes_on_after_its_last_whole_line(tmp_path, cut):
    whole = b"".join(WRITTEN)
    (tmp_path / journal.FILE_NAME).write_bytes(whole[:-cut])
    with Journal(tmp_path) as writer:
        writer.append("after")
    *kept, after = journal.read(tmp_path)
    assert after["event"] == "after"
    assert len(kept) == whole[:-cut].count(b"\n")


def test_an_event_that_does_not_fit_is_named(tmp_path):
    start = Script([1]).events[0]
    for event in (
        {"event": "lane_started", "at": 1.0, "lane": "unknown"},
        {"event": "lane_started"},
        {"event": "slice", "cell": []},
    ):
        (tmp_path / journal.FILE_NAME).write_bytes(lines(start, event))
        with pytest.raises(
            JournalError, match=rf"journal\.jsonl: line 2 \('{event['event']}'\) is none that a study writes"
        ):
            replay.load(tmp_path)


def test_another_format_is_refused(tmp_path):
    line = {"event": "study_started", "schema_version": journal.SCHEMA_VERSION + 1}
    (tmp_path / journal.FILE_NAME).write_bytes(lines(line))
    with pytest.raises(
        JournalError, match=r"has format 2, and this is mlflow-ngraph .*, for format 1: a newer one may read it"
    ):
        replay.load(tmp_path)
    with pytest.raises(JournalError, match="has format 2"):
        next(journal.read_backwards(tmp_path))


def test_a_journal_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="the journal cannot be written"):
        Journal(tmp_path / "file" / "study")


def test_a_directory_without_a_study_is_named(tmp_path):
    with pytest.raises(JournalError, match=r"no journal\.jsonl here"):
        replay.load(tmp_path)
    (tmp_path / journal.FILE_NAME).touch()
    with pytest.raises(JournalError, match="killed before it began"):
        replay.load(tmp_path)
