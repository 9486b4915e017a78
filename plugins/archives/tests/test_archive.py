"""Studies as one file: what leaves here arrives elsewhere, and nothing else does."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from mlflow import MlflowClient

from mlflow_ngraph import home, runner
from mlflow_ngraph.cli.app import run as cli
from mlflow_ngraph.devices.fingerprint import fingerprint
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.signing import load_key, public_text
from mlflow_ngraph.engines.trust import EVERYTHING, Rules, Source
from mlflow_ngraph.errors import ArchiveError, EngineError, NGraphError, StudyError, UsageError
from mlflow_ngraph.execute import journal, replay, study_directories
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.recording.from_journal import sync_study
from mlflow_ngraph.study import parse
from mlflow_ngraph_archives import contents, importing
from mlflow_ngraph_archives.contents import Contents
from mlflow_ngraph_archives.export import export

pytestmark = pytest.mark.usefixtures("fake_compiler", "compilers")

STUDY = {
    "name": "carried",
    "workloads": ["block:mha?width=16"],
    "compilers": ["identity", {"name": "fake", "flags": {"behaviour": "ok"}}],
    "batch_sizes": [1, 2],
    "repetitions": 6,
    "slice_repetitions": 3,
    "threads": 1,
    "warmup": {"window": 2, "max_seconds": 0.2},
    "limits": {"reload_seconds": 0},
}


@pytest.fixture(scope="module")
def measured(processes: None, fake_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a study that nobody changes."""
    return runner.run_study(parse(STUDY), home=tmp_path_factory.mktemp("device"), offline=True).directory


@pytest.fixture(scope="module")
def archive(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export([measured], tmp_path_factory.mktemp("stick") / "study.tar").path


def studies(home: Path) -> Path:
    (home / "studies").mkdir(parents=True, exist_ok=True)
    return home / "studies"


def take(path: Path, home: Path, rules: Rules = EVERYTHING) -> list[importing.Imported]:
    return importing.unpack(importing.check(path, rules), studies(home))


def files(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "journal.lock"
    }


def server(uri: str) -> list[Any]:
    """All that a server has, but for what it calls things."""
    client = MlflowClient(uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(experiments)
    return [
        *sorted((run.info.status, sorted(run.data.metrics.items()), sorted(run.data.params.items())) for run in runs),
        *sorted(sorted(model.params.items()) for model in client.search_logged_models(experiments)),
    ]


def test_a_study_is_on_another_server_what_it_is_on_its_own(
    measured: Path, archive: Path, sqlite_uri: str, sqlite_template: Path, tmp_path: Path
) -> None:
    shutil.copyfile(sqlite_template, tmp_path / "own.db")
    own = f"sqlite:///{tmp_path / 'own.db'}"
    shutil.copytree(measured, tmp_path / "copy")
    sync_study(tmp_path / "copy", tracking_uri=own)
    command = ["study", "import", str(archive), "--home", str(tmp_path / "lab"), "--tracking-uri", sqlite_uri]
    assert cli(command) == 0
    assert server(sqlite_uri) == server(own)
    before, (directory,) = server(sqlite_uri), list((tmp_path / "lab" / "studies").iterdir())
    derived = (journal.FILE_NAME, home.STUDY_FILE, home.IMPORTED_FROM)
    arrived = {path: digest for path, digest in files(directory).items() if path not in derived}
    assert arrived == {path: digest for path, digest in files(measured).items() if path in arrived}
    assert {path for path in arrived if path.startswith("engines/")}
    assert parse(yaml.safe_load((directory / home.STUDY_FILE).read_text())) == parse(STUDY)
    assert (directory / home.IMPORTED_FROM).read_text() == f"{archive}: not signed; {archive.as_uri()} is trusted"
    assert cli(command) == 0, "again"
    assert server(sqlite_uri) == before
    assert [path.name for path in (tmp_path / "lab" / "studies").iterdir()] == [measured.name], "nothing else is left"


def test_exporting_again_gives_the_same_bytes(measured: Path, archive: Path, tmp_path: Path) -> None:
    again = export([measured], tmp_path / "again.tar")
    assert again.path.read_bytes() == archive.read_bytes()
    assert again.path.stat().st_mode & 0o777 == 0o600
    assert again.lacking == {}


def test_what_tar_unpacks_is_for_readers(measured: Path, archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    directory = tmp_path / measured.name
    assert (directory / "journal.jsonl").read_bytes() == (measured / "journal.jsonl").read_bytes()
    assert len(pd.read_parquet(directory / "results.parquet")) == 4
    assert len(pd.read_parquet(directory / "samples.parquet")) == 24
    assert repr(replay.load(directory)) == repr(replay.load(measured))


def test_several_studies_travel_together_and_none_twice(measured: Path, tmp_path: Path) -> None:
    other = runner.run_study(parse({**STUDY, "name": "other"}), home=tmp_path / "device", offline=True).directory
    both = export([measured, other], tmp_path / "both.tar").path
    assert [one.state for one in take(both, tmp_path / "lab")] == ["imported", "imported"]
    assert [one.state for one in take(both, tmp_path / "lab")] == ["unchanged", "unchanged"]
    with pytest.raises(ArchiveError, match="given twice"):
        export([measured, measured.parent / measured.name], tmp_path / "doubled.tar")
    assert not (tmp_path / "doubled.tar").exists()


def test_a_study_that_was_measured_further_is_continued_and_one_that_went_on_here_is_not(
    measured: Path, archive: Path, tmp_path: Path
) -> None:
    beginning = tmp_path / "device" / measured.name
    shutil.copytree(measured, beginning)
    lines = (beginning / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (beginning / "journal.jsonl").write_bytes(b"".join(lines[:-1]))
    early = export([beginning], tmp_path / "early.tar").path
    (place,) = [one.directory for one in take(early, tmp_path / "lab")]
    with Journal(place) as writer:
        writer.append("recording_failed", reason="what a server did is no part of the study")
    assert [one.state for one in take(archive, tmp_path / "lab")] == ["continued"]
    assert (place / "journal.jsonl").read_bytes() == (measured / "journal.jsonl").read_bytes()
    assert [one.state for one in take(early, tmp_path / "lab")] == ["unchanged"], "there is more of it here"
    (place,) = [one.directory for one in take(early, tmp_path / "elsewhere")]
    with Journal(place) as writer:
        writer.append("study_interrupted", reason="elsewhere")
    before = files(tmp_path / "elsewhere")
    with pytest.raises(ArchiveError, match="went on in another way here than in the archive, from line"):
        take(archive, tmp_path / "elsewhere")
    assert files(tmp_path / "elsewhere") == before


def continued(beginning: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    """An archive of a study that went on somewhere else."""
    elsewhere = folder / beginning.name
    shutil.copytree(beginning, elsewhere)
    change(elsewhere)
    return export([elsewhere], folder / "continued.tar").path


def build_anew(directory: Path) -> None:
    """Let the journal say that an engine was built again, from other files."""
    event = next(event for event in journal.read(directory) if event["event"] == "engine_built")
    (directory / event["directory"] / "model.bin").write_bytes(b"something else")
    fields = {name: value for name, value in event.items() if name not in ("event", "at", "check")}
    with Journal(directory) as writer:
        writer.append("session_started", session=2, study_id=directory.name, name="carried", lanes=[], cells=4, done=4)
        writer.append("engine_built", **{**fields, "files": digest_files(directory / event["directory"])})


def interrupt(directory: Path) -> None:
    with Journal(directory) as writer:
        writer.append("study_interrupted", reason="elsewhere")


def test_a_continuation_keeps_what_is_here_and_changes_no_engine(measured: Path, tmp_path: Path) -> None:
    place = studies(tmp_path / "lab") / measured.name
    shutil.copytree(measured, place)
    before = files(place)
    assert {path.partition("/")[0] for path in before} >= {"logs", "engines"}
    with pytest.raises(ArchiveError, match=r"has other files in engines/\S+ in the archive than here: import it with"):
        take(continued(measured, tmp_path / "hostile", build_anew), tmp_path / "lab")
    assert files(place) == before
    (imported,) = take(continued(measured, tmp_path / "honest", interrupt), tmp_path / "lab")
    assert imported.state == "continued"
    after = files(place)
    assert {path for path in before | after if before.get(path) != after.get(path)} == {
        journal.FILE_NAME,
        home.IMPORTED_FROM,
    }


def test_an_imported_study_is_not_gone_on_with(measured: Path, archive: Path, tmp_path: Path) -> None:
    begun, machine = journal.first(measured), fingerprint()["digest"]
    assert begun is not None
    assert begun["fingerprint"]["digest"] == machine, "the same machine and study"
    key = study_directories.study_key(parse(STUDY), begun["device"], machine)
    assert study_directories.newest(measured.parent.parent, key, machine) == measured
    take(archive, tmp_path / "lab")
    assert study_directories.newest(tmp_path / "lab", key, machine) is None
    with pytest.raises(StudyError, match=rf"{measured.name} is from {archive}: not signed; .* is not gone on with"):
        runner.run_study(parse(STUDY), home=tmp_path / "lab", offline=True, resume="always")


def sealed(archive: Path, name: str, change: Callable[[bytes], bytes], folder: Path) -> Path:
    """An archive with another file of this name, whose table of contents has its digest."""
    with tarfile.open(archive) as tar:
        member = next(entry for entry in tar if entry.name.endswith(f"/{name}"))
        content = change(tar.extractfile(member).read())  # type: ignore[union-attr]

    def enter(table: dict[str, Any]) -> None:
        digest = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        table["studies"][0]["files"][name] = digest

    return written(folder, rebuilt(archive, enter, replaced={member.name: content}))


def half(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 2])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("results.parquet", lambda content: b"garbage"),
        ("results.parquet", lambda content: pd.read_parquet(io.BytesIO(content)).iloc[:-1].to_parquet()),
        ("samples.parquet", lambda content: pd.read_parquet(io.BytesIO(content)).iloc[::-1].to_parquet()),
        ("fingerprint.json", lambda content: content.replace(b"1", b"2")),
        ("fingerprint.json", lambda content: b"[" * 100_000),
    ],
)
def test_what_was_measured_has_to_follow_from_the_journal(
    archive: Path, tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    said = refused(sealed(archive, name, change, tmp_path), tmp_path / "lab")
    assert f"{name} does not follow from journal.jsonl: one of them was changed or cut" in said


def test_half_a_journal_is_refused(archive: Path, tmp_path: Path) -> None:
    assert "journal.jsonl" in refused(sealed(archive, "journal.jsonl", half, tmp_path), tmp_path / "lab")


@pytest.mark.parametrize("name", ["summary.md", "results.csv", "study.yaml"])
def test_tables_for_readers_are_not_taken_from_an_archive(
    measured: Path, archive: Path, tmp_path: Path, name: str
) -> None:
    (imported,) = take(sealed(archive, name, lambda content: b"garbage", tmp_path), tmp_path / "lab")
    assert repr(replay.load(imported.directory)) == repr(replay.load(measured))
    assert "garbage" not in [path.read_text() for path in imported.directory.glob("*.*")]


def test_an_unfinished_study_is_said_to_be_one(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beginning = tmp_path / measured.name
    shutil.copytree(measured, beginning)
    (beginning / "journal.jsonl").write_bytes(half((measured / "journal.jsonl").read_bytes()))
    path = export([beginning], tmp_path / "early.tar").path
    assert cli(["study", "import", str(path), "--home", str(tmp_path / "lab"), "--offline"]) == 0
    assert "it ends before the study does" in capsys.readouterr().out


def test_an_engine_that_has_changed_is_left_out_and_named(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured, tmp_path / measured.name)
    damaged = next((tmp_path / measured.name).glob("engines/*/*/outputs-b2-0.npz"))
    damaged.unlink()
    damaged.write_bytes(b"other")
    exported = export([tmp_path / measured.name], tmp_path / "study.tar")
    assert list(exported.lacking) == [damaged.parent.name]
    assert "has changed since it was written" in exported.lacking[damaged.parent.name]
    (arrived,) = take(exported.path, tmp_path / "lab")
    assert not (arrived.directory / "engines" / damaged.parent.parent.name / damaged.parent.name).exists()


def test_a_file_is_replaced_only_where_that_is_asked_for(measured: Path, tmp_path: Path) -> None:
    (tmp_path / "study.tar").write_bytes(b"mine")
    with pytest.raises(UsageError, match="is there already"):
        export([measured], tmp_path / "study.tar")
    assert (tmp_path / "study.tar").read_bytes() == b"mine"
    assert cli(["study", "export", str(measured), "-o", str(tmp_path / "study.tar"), "--force"]) == 0
    assert importing.check(tmp_path / "study.tar", EVERYTHING).contents.studies[0].name == "carried"
    assert [path.name for path in tmp_path.iterdir()] == ["study.tar"]


def test_links_and_pipes_are_not_replaced(measured: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("elsewhere.tar")
    for name in ("pipe", "link"):
        with pytest.raises(UsageError, match="is no plain file"):
            export([measured], tmp_path / name, replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_who_signed_it_is_told_and_wanted(measured: Path, signing_key: Path, tmp_path: Path) -> None:
    assert cli(["study", "export", str(measured), "-o", str(tmp_path / "study.tar"), "--sign", str(signing_key)]) == 0
    signed = Source(uri="*", trust="signed")
    known = Rules(sources=(signed,), signers={"ana": public_text(load_key(signing_key))})
    assert importing.check(tmp_path / "study.tar", known).trusted.signer == "ana"
    with pytest.raises(EngineError, match="need a signature by a known signer"):
        importing.check(tmp_path / "study.tar", Rules(sources=(signed,)))
    unsigned = export([measured], tmp_path / "unsigned.tar").path
    with pytest.raises(EngineError, match="it is not signed"):
        importing.check(unsigned, known)


def test_a_newer_version_is_named(archive: Path, tmp_path: Path) -> None:
    content = rebuilt(archive, lambda table: table.update(schema_version=2, package="9.1.0"))
    with pytest.raises(ArchiveError, match=r"has format 2, .* mlflow-ngraph 9\.1\.0 wrote it and reads it"):
        importing.check(written(tmp_path, content), EVERYTHING)


def written(folder: Path, content: bytes) -> Path:
    (folder / "hostile.tar").write_bytes(content)
    return folder / "hostile.tar"


def rebuilt(
    archive: Path,
    change: Callable[[dict[str, Any]], object] = lambda table: None,
    text: Callable[[str], str] = str,
    replaced: Mapping[str, bytes] | None = None,
) -> bytes:
    """An archive whose table of contents says something else, or has other files, and is as it should be otherwise."""
    with tarfile.open(archive) as tar:
        held = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    table = json.loads(held.pop(contents.FILE))
    change(table)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        members = {contents.FILE: text(json.dumps(table)).encode(), **held, **(replaced or {})}
        for name, content in members.items():
            tar.addfile(contents.member(name, len(content)), io.BytesIO(content))
    return stream.getvalue()


def rename(old: str, new: str) -> Callable[[dict[str, Any]], object]:
    def change(table: dict[str, Any]) -> None:
        listed = table["studies"][0]["files"]
        name = next(name for name in listed if name.startswith(old))
        listed[new] = listed.pop(name)

    return change


def resize(by: int) -> Callable[[dict[str, Any]], object]:
    def change(table: dict[str, Any]) -> None:
        table["studies"][0]["files"]["summary.md"]["size"] += by

    return change


def refused(path: Path, home: Path) -> str:
    """Why an archive is refused; nothing was written."""
    before = files(home)
    with pytest.raises(NGraphError) as caught:
        take(path, home)
    assert files(home) == before
    assert not list(studies(home).iterdir())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rename("engines/", "../../outside"), "no study has a file"),
        (rename("engines/", "engines/../../../outside"), "leads out of the study"),
        (rename("engines/", "/etc/passwd"), "no study has a file"),
        (rename("engines/", "engines//twice"), "leads out of the study"),
        (rename("engines/", "engines/a/./b"), "leads out of the study"),
        (rename("engines/", "engines/" + "x" * 300), "no disk takes"),
        (rename("engines/", "engines/other"), "hostile.tar"),
        (rename("journal", "study.yml"), "there is no journal.jsonl"),
        (rename("summary", ".."), "leads out of the study"),
        (lambda table: table["studies"][0]["files"].pop("journal.jsonl"), "there is no journal.jsonl"),
        (lambda table: table["studies"][0].update(study_id="../outside"), "study_id"),
        (lambda table: table["studies"][0].update(study_id="another"), "hostile.tar"),
        (lambda table: table["studies"].append(table["studies"][0]), "a study stands in it twice"),
        (lambda table: table["studies"].clear(), "studies"),
        (lambda table: table.update(format="tar"), "format"),
        (lambda table: table.update(more="is unknown"), "unknown key"),
        (resize(1), "hostile.tar"),
        (resize(-1), "hostile.tar"),
        (resize(10**15), "hostile.tar"),
        (resize(10**19), "size"),
        (resize(-(10**9)), "size"),
        (lambda table: table["studies"][0]["files"]["summary.md"].update(size="7"), "size"),
        (lambda table: table["studies"][0]["files"]["summary.md"].update(sha256="0" * 64), "has changed since"),
    ],
)
def test_an_archive_with_a_hostile_table_of_contents_is_refused(
    change: Callable[[dict[str, Any]], object], said: str, archive: Path, tmp_path: Path
) -> None:
    assert said in refused(written(tmp_path, rebuilt(archive, change)), tmp_path / "lab")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lambda text: text.replace('"package"', '"package": "1", "package"', 1), "stands in it twice"),
        (lambda text: "[" * 100_000, "not readable"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": ' + "9" * 5000), "number that cannot be"),
        (lambda text: "null", "not readable"),
        (lambda text: "", "not readable"),
    ],
)
def test_a_table_of_contents_that_is_none_is_refused(
    text: Callable[[str], str], said: str, archive: Path, tmp_path: Path
) -> None:
    assert said in refused(written(tmp_path, rebuilt(archive, text=text)), tmp_path / "lab")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind: bytes, archive: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(archive) as tar, tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as other:
        for member in tar:
            if member.name.endswith("summary.md"):
                member.type, member.linkname, member.size = kind, "/etc/passwd", 0
            other.addfile(member, tar.extractfile(member) if member.isreg() else None)
    assert "before" in refused(written(tmp_path, stream.getvalue()), tmp_path / "lab")


def test_a_forged_journal_reaches_no_file_outside(measured: Path, archive: Path, tmp_path: Path) -> None:
    """The check of a line can be computed by anybody: what it says is looked at all the same."""
    name, secret = f"{measured.name}/{journal.FILE_NAME}", hashlib.sha256(b"mine").hexdigest()
    (tmp_path / "secret").write_bytes(b"mine")
    for directory in ("../../..", str(tmp_path), "engines/../..", "engines"):
        check, forged = "", b""
        for event in journal.read(measured):
            if event["event"] == "engine_built":
                event |= {"directory": directory, "files": {"secret": secret}}
            line, check = journal.line_of({key: value for key, value in event.items() if key != "check"}, check)
            forged += line
        digest = {"sha256": hashlib.sha256(forged).hexdigest(), "size": len(forged)}

        def change(table: dict[str, Any], digest: dict[str, Any] = digest) -> None:
            table["studies"][0]["files"]["journal.jsonl"] = digest

        path = written(tmp_path, rebuilt(archive, change, replaced={name: forged}))
        assert "does not lie in the directory of the study" in refused(path, tmp_path / "lab")
        copy = tmp_path / "device" / measured.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(measured, copy)
        (copy / "journal.jsonl").write_bytes(forged)
        exported = tmp_path / "exported.tar"
        try:
            export([copy], exported, replace=True)
        except ArchiveError:
            continue
        with tarfile.open(exported) as tar:
            assert not [member for member in tar if member.name.endswith("secret")]


def test_every_truncation_and_flipped_bit_is_refused(archive: Path, tmp_path: Path) -> None:
    whole, rng = archive.read_bytes(), random.Random(1)
    ends = {0, 1, 511, 512, 513, len(whole) - 1, len(whole) - 512, *rng.sample(range(len(whole)), 60)}
    spoiled = [whole[:end] for end in ends]
    spoiled += [whole + b"\0", whole + b"more", whole + whole]
    places = [*range(0, 512, 7), *rng.sample(range(len(whole)), 250), *range(len(whole) - 1500, len(whole), 97)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        spoiled.append(bytes(flipped))
    for _ in range(20):
        start, size = rng.randrange(len(whole) - 512) // 512 * 512, 512 * rng.randint(1, 4)
        spoiled.append(whole[:start] + whole[start + size :])
        spoiled.append(whole[:start] + whole[start : start + size] + whole[start:])
    for content in spoiled:
        if content != whole:
            refused(written(tmp_path, content), tmp_path / "lab")
    assert Contents.parse(b"".join(intake_content(whole, tmp_path)), "whole").studies


def intake_content(whole: bytes, folder: Path) -> list[bytes]:
    with tarfile.open(written(folder, whole)) as tar:
        return [tar.extractfile(contents.FILE).read()]  # type: ignore[union-attr]


def test_an_archive_that_is_changed_behind_the_check_is_not_unpacked(archive: Path, tmp_path: Path) -> None:
    path = written(tmp_path, archive.read_bytes())
    checked = importing.check(path, EVERYTHING)
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="has changed"):
        importing.unpack(checked, studies(tmp_path / "lab"))
    assert not list(studies(tmp_path / "lab").iterdir())


def test_what_is_no_archive_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.tar").write_bytes(b"x" * 4096)
    for name, code, said in (
        ("other.tar", 1, "is no archive of studies"),
        ("missing.tar", 2, "does not exist"),
        (".", 2, "is a directory"),
    ):
        assert cli(["study", "import", str(tmp_path / name), "--home", str(tmp_path / "lab"), "--offline"]) == code
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error
