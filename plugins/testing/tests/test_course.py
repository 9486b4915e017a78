"""Part after part: what fails, hangs or cannot be tried is reported, the others go on, and all is on disk meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_ngraph.devices.base import DeviceProfile, Fitness
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_testing.first_contact import report as reports
from mlflow_ngraph_testing.first_contact.bench import Bench
from mlflow_ngraph_testing.first_contact.course import PARTS, Part, begin, follow
from mlflow_ngraph_testing.first_contact.finding import Finding, Status
from mlflow_ngraph_testing.first_contact.report import JSON_NAME, MARKDOWN_NAME, Report


class Here(DeviceProfile):
    name = "here"
    summary = "a machine that is there"
    compilers = ("identity",)

    def fitness(self) -> Fitness:
        return Fitness()


class Nowhere(Here):
    name = "nowhere"

    def fitness(self) -> Fitness:
        return Fitness(problems=("needs what nobody has",))


class Log:
    """Parts that end as they are told, and what was asked of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    def part(self, name: str, finding: Finding | Exception, *, anywhere: bool = False, limit: float = 30.0) -> Part:
        def run(bench: Bench, seconds: float) -> Finding:
            self.asked.append((name, seconds))
            if isinstance(finding, Exception):
                raise finding
            return finding

        return Part(name, f"part {name}", {"short": limit, "full": 10 * limit}, run, anywhere)


@pytest.fixture(autouse=True)
def baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "compilers", ["identity"])


def new(parts: list[Part], form: str = "short") -> Report:
    return Report("here", form, "1.0", [(part.name, part.title) for part in parts])


def test_a_part_that_fails_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    log = Log()
    parts = [
        log.part("a", Finding("right", "fine")),
        log.part("b", RuntimeError("no such thing")),
        log.part("c", Finding("right", "fine as well")),
    ]
    report = follow(new(parts), Here(), tmp_path, lambda line: None, parts)
    assert [name for name, _ in log.asked] == ["a", "b", "c"]
    assert report.parts["b"].status == "wrong"
    assert "no such thing" in report.parts["b"].said
    assert report.exit_code == 3


def test_a_part_that_takes_too_long_is_not_wrong(tmp_path: Path) -> None:
    parts = [Log().part("a", TimeoutError("mlflow-ngraph doctor was not done within 9 s"))]
    report = follow(new(parts), Here(), tmp_path, lambda line: None, parts)
    assert report.parts["a"].status == "incomplete"
    assert "doctor was not done within 9 s" in report.parts["a"].said


@pytest.mark.parametrize(("status", "code"), [("right", 0), ("lacking", 0), ("incomplete", 3), ("wrong", 3)])
def test_the_exit_code_says_whether_all_that_could_be_tried_was_right(
    tmp_path: Path, status: Status, code: int
) -> None:
    parts = [Log().part("a", Finding("right", "")), Log().part("b", Finding(status, ""))]
    assert follow(new(parts), Here(), tmp_path, lambda line: None, parts).exit_code == code


def test_what_is_known_is_on_disk_before_the_next_part_begins(tmp_path: Path) -> None:
    seen = []

    def look(bench: Bench, seconds: float) -> Finding:
        seen.extend(json.loads((tmp_path / JSON_NAME).read_text())["parts"])
        return Finding("right", "")

    parts = [Log().part("a", Finding("wrong", "bad")), Part("b", "b", {"short": 9}, look)]
    follow(new(parts), Here(), tmp_path, lambda line: None, parts)
    assert seen == ["a"]


def test_no_part_gets_more_than_its_own_limit_or_what_is_left_of_the_whole(tmp_path: Path) -> None:
    log = Log()
    parts = [log.part("a", Finding("right", ""), limit=20), log.part("b", Finding("right", ""), limit=1000)]
    follow(new(parts), Here(), tmp_path, lambda line: None, parts, whole_s=100.0)
    (_, first), (_, second) = log.asked
    assert first == 20
    assert 90 < second <= 100


def test_a_part_for_which_no_time_is_left_is_named(tmp_path: Path) -> None:
    log = Log()
    parts = [log.part("a", Finding("right", ""))]
    report = follow(new(parts), Here(), tmp_path, lambda line: None, parts, whole_s=1.0)
    assert log.asked == []
    assert report.parts["a"].status == "incomplete"


def test_where_the_hardware_is_missing_only_what_lacks_is_said(tmp_path: Path) -> None:
    log = Log()
    what = Sheet("What lacks", ("what", "found"), [("device nowhere", "needs what nobody has")])
    parts = [
        log.part("machine", Finding("lacking", "needs what nobody has", [what]), anywhere=True),
        log.part("smoke", Finding("right", "")),
    ]
    report = follow(new(parts), Nowhere(), tmp_path, lambda line: None, parts)
    assert [name for name, _ in log.asked] == ["machine"]
    assert report.parts["smoke"].status == "lacking"
    assert report.exit_code == 0
    page = (tmp_path / MARKDOWN_NAME).read_text()
    assert "Nothing could be tried: this machine lacks what the device needs." in page
    assert "| device nowhere | needs what nobody has |" in page


def test_resuming_tries_again_what_was_not_right(tmp_path: Path) -> None:
    log = Log()
    parts = [log.part("a", Finding("right", "")), log.part("b", Finding("incomplete", ""))]
    follow(new(parts), Here(), tmp_path, lambda line: None, parts)
    again = begin("here", "short", tmp_path, resume=True)
    follow(again, Here(), tmp_path, lambda line: None, parts)
    assert [name for name, _ in log.asked] == ["a", "b", "b"]


def test_a_report_is_not_written_over_by_accident(tmp_path: Path) -> None:
    new([]).write(tmp_path)
    with pytest.raises(UsageError, match="--resume"):
        begin("here", "short", tmp_path, resume=False)
    with pytest.raises(UsageError, match="'here'"):
        begin("xeon", "short", tmp_path, resume=True)
    with pytest.raises(UsageError, match="short form"):
        begin("here", "full", tmp_path, resume=True)


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = new([Log().part("a", Finding("right", ""))])
    report.parts["a"] = Finding("wrong", "so", (Sheet("T", ("x",), [["1"]]),), {"n": 1}, 2.5)
    report.write(tmp_path)
    assert list(reports.read(tmp_path).lines()) == list(report.lines())
    assert reports.read(tmp_path).parts["a"].facts == {"n": 1}


def test_folders_of_the_user_are_not_told(tmp_path: Path) -> None:
    report = new([Log().part("a", Finding("right", ""))])
    report.parts["a"] = Finding("wrong", f"{tmp_path}/home and {Path.home()}/models")
    report.write(tmp_path)
    for name in (JSON_NAME, MARKDOWN_NAME):
        text = (tmp_path / name).read_text()
        assert "OUTPUT/home and ~/models" in text


def test_the_limits_of_the_short_form_are_within_ten_minutes() -> None:
    from mlflow_ngraph_testing.first_contact.course import WHOLE_S

    assert WHOLE_S["short"] < 600
    # The two that take as many as fit come last, and have the rest.
    assert sum(part.limits["short"] for part in PARTS[:-2]) < WHOLE_S["short"]
