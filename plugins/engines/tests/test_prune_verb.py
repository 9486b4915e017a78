"""``prune`` takes away what no rule keeps, with its files, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from mlflow_ngraph.engines import files as files_of_engines
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.package import read_manifest
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.tracking import artifact_stores, download, manifests
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph_engines import pruning
from tests.support.recording import models, small, write
from tests.support.records import study_record
from tests.support.variants import Shelf

Cli = Callable[..., tuple[int, str, str]]


def files(shelf: Shelf, model_id: str) -> list[Path]:
    location = MlflowClient(shelf.uri).get_logged_model(model_id).artifact_location
    return [path for path in Path(unquote(urlsplit(location).path)).rglob("*") if path.is_file()]


def gone(shelf: Shelf, model_id: str, place: Path) -> bool:
    with pytest.raises(MlflowException):
        MlflowClient(shelf.uri).get_logged_model(model_id)
    return not [path for path in place.rglob("*") if path.is_file()]


def place(shelf: Shelf, model_id: str) -> Path:
    return Path(unquote(urlsplit(MlflowClient(shelf.uri).get_logged_model(model_id).artifact_location).path))


def going(document: Any) -> set[str]:
    return {engine["model_id"] for engine in document["engines"]}


def test_the_best_stay_and_nothing_goes_without_yes(shelf: Shelf, cli: Cli, cli_json: Callable[..., Any]) -> None:
    best, middle, worst = shelf.put(300.0), shelf.put(200.0), shelf.put(100.0)
    doubtful = shelf.put(900.0, verdict="timeout")
    document = cli_json("engine", "prune", "--keep-best", "1")
    assert not document["removed"]
    assert document["kept"] == 1
    assert going(document) == {middle, worst, doubtful}
    whole = sum(path.stat().st_size for path in files(shelf, middle))
    assert next(one["bytes"] for one in document["engines"] if one["model_id"] == middle) == whole
    code, out, _ = cli("engine", "prune", "--keep-best", "1")
    assert code == 0
    assert "nothing was removed: add --yes" in out
    places = {model: place(shelf, model) for model in (middle, worst, doubtful)}
    document = cli_json("engine", "prune", "--keep-best", "1", "--yes")
    assert document["removed"]
    assert all(gone(shelf, model, where) for model, where in places.items())
    assert files(shelf, best)
    assert going(cli_json("engine", "prune", "--keep-best", "1")) == set()


def test_what_others_put_beside_the_studies_is_not_weighed(
    shelf: Shelf, cli_json: Callable[..., Any], tmp_path: Path
) -> None:
    theirs = shelf.put(900.0)
    record = small(study_record(tmp_path / "study"))
    recorder = Recorder(shelf.uri, "mine")
    write(recorder, record, tmp_path / "study")
    (mine,) = models(recorder.client, record)
    assert going(cli_json("engine", "prune", "--keep-newest", "0")) == {mine.model_id}
    assert going(cli_json("engine", "prune", "--keep-newest", "0", "--all-experiments")) == {mine.model_id, theirs}


def test_groups_are_of_workload_device_and_batch(shelf: Shelf, cli_json: Callable[..., Any]) -> None:
    both = shelf.put(100.0, batches=(1, 4))
    small = shelf.put(200.0, batches=(1,))
    elsewhere = shelf.put(10.0, device="orin")
    useless = shelf.put(50.0, batches=(1, 4))
    document = cli_json("engine", "prune", "--keep-best", "1")
    assert going(document) == {useless}
    assert {both, small, elsewhere}.isdisjoint(going(document))
    assert going(cli_json("engine", "prune", "--keep-best", "1", "--devices", "orin")) == set()


def test_the_newest_and_the_young_stay(shelf: Shelf, cli_json: Callable[..., Any]) -> None:
    old = shelf.put(300.0)
    new = shelf.put(100.0)
    assert going(cli_json("engine", "prune", "--keep-newest", "1")) == {old}
    assert going(cli_json("engine", "prune", "--keep-newest", "0")) == {old, new}
    assert going(cli_json("engine", "prune", "--keep-newest", "1", "--keep-best", "1")) == set()
    assert going(cli_json("engine", "prune", "--keep-newest", "1", "--older-than", "1h")) == set()
    assert going(cli_json("engine", "prune", "--older-than", "0h")) == {old, new}


def test_registered_engines_go_only_if_asked(shelf: Shelf, cli_json: Callable[..., Any]) -> None:
    first, second, free = shelf.put(100.0), shelf.put(200.0), shelf.put(50.0)
    cli_json("engine", "promote", first, "--name", "resnet")
    cli_json("engine", "promote", second, "--name", "resnet")
    rule = ("engine", "prune", "--keep-newest", "0")
    assert going(cli_json(*rule)) == {free}
    assert going(cli_json(*rule, "--include", "registered")) == {free, first}
    assert going(cli_json(*rule, "--include", "aliased")) == {free, first, second}
    cli_json(*rule, "--include", "registered", "--yes")
    client = MlflowClient(shelf.uri)
    assert [version.version for version in client.search_model_versions("name='resnet'")] in ([2], ["2"])
    assert client.get_model_version_by_alias("resnet", "xeon-champion").version in (2, "2")


def test_what_was_interrupted_is_finished_and_meanwhile_not_loaded(
    shelf: Shelf, cli: Cli, cli_json: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, best = shelf.put(100.0), shelf.put(200.0)
    where = place(shelf, model)
    with monkeypatch.context() as patch:
        real = files_of_engines.remove_files
        count = iter(range(100))

        def fail(directory: Path, chosen: Callable[[str], bool]) -> None:
            real(directory, lambda name: chosen(name) and next(count) == 0)
            raise OSError(5, "the disk is on fire")

        patch.setattr(pruning, "remove_files", fail)
        code, out, _ = cli("engine", "prune", "--keep-best", "1", "--yes", "--json")
    assert code == 1
    (problem,) = [engine["problem"] for engine in json.loads(out)["engines"]]
    assert "the disk is on fire" in problem
    assert model not in {engine["model_id"] for engine in cli_json("engine", "list")["engines"]}
    with pytest.raises(EngineError):
        download.pull(download.locate(model, shelf.uri), tmp_path / "pulled")
    # Whatever the rules say now.
    document = cli_json("engine", "prune", "--keep-best", "9", "--yes")
    assert going(document) == {model}
    assert document["engines"][0]["interrupted"]
    assert gone(shelf, model, where)
    assert files(shelf, best)


def test_a_store_that_deletes_nothing_keeps_its_engines(
    shelf: Shelf, cli: Cli, cli_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shelf.put(100.0)

    def refuse(self: Any, path: str | None = None) -> None:
        raise NotImplementedError

    monkeypatch.setattr(artifact_stores, "local_directory", lambda location: None)
    monkeypatch.setattr(LocalArtifactRepository, "delete_artifacts", refuse)
    code, out, _ = cli("engine", "prune", "--older-than", "0h", "--yes", "--json")
    assert code == 1
    assert "does not delete files" in json.loads(out)["engines"][0]["problem"]
    found = MlflowClient(shelf.uri).get_logged_model(model)
    assert str(found.status) == "READY"
    assert Tag.PRUNED not in found.tags
    assert cli_json("engine", "list")["engines"][0]["fits"]


def test_a_store_that_is_reached_through_mlflow_loses_the_same_files(
    shelf: Shelf, cli_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shelf.put(100.0)
    where = place(shelf, model)
    with monkeypatch.context() as patch:
        patch.setattr(artifact_stores, "local_directory", lambda location: None)
        patch.setattr(manifests, "of", manifests_of(where))
        cli_json("engine", "prune", "--older-than", "0h", "--yes")
    assert gone(shelf, model, where)
    assert not list(where.iterdir())


def manifests_of(where: Path) -> Callable[[object], Manifest]:
    manifest = read_manifest(where).manifest
    return lambda remote: manifest


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.txt").write_text("precious")
    return tmp_path / "victim"


@pytest.mark.parametrize("how", ["elsewhere", "upwards", "linked", "linked inside"])
def test_nothing_is_deleted_outside_an_engines_own_place(shelf: Shelf, victim: Path, how: str) -> None:
    """A server may say that the files of a model are anywhere, and whoever may write there puts links."""
    from mlflow_ngraph.analysis.selection import Selection
    from mlflow_ngraph_engines import inventory

    where = place(shelf, shelf.put(100.0))
    (engine,) = inventory.read([shelf.uri], None, Selection())
    if how == "elsewhere":
        engine.model._artifact_location = victim.as_uri()
    elif how == "upwards":
        engine.model._artifact_location = f"{where.as_uri()}/../../../../victim"
    elif how == "linked":
        where.rename(victim.parent / "aside")
        where.symlink_to(victim)
    else:
        (where / "engine" / "docs").symlink_to(victim)
    assert pruning.sizes([engine]) == {engine.model_id: 0}
    with pytest.raises(TrackingError, match=r"stays: .* is (not a place of its own|a link)"):
        pruning.remove(engine)
    assert (victim / "thesis.txt").read_text() == "precious"


def test_files_that_no_manifest_names_are_left_and_told(shelf: Shelf, cli: Cli) -> None:
    model = shelf.put(100.0)
    (place(shelf, model) / "notes.txt").write_text("precious")
    code, out, _ = cli("engine", "prune", "--older-than", "0h", "--yes", "--json")
    assert code == 1
    assert "does not name notes.txt" in json.loads(out)["engines"][0]["problem"]
    assert str(MlflowClient(shelf.uri).get_logged_model(model).status) == "READY"
    assert len(files(shelf, model)) > 1


def test_rules_are_needed(cli: Cli) -> None:
    code, _, err = cli("engine", "prune")
    assert code == 2
    assert "prune needs a rule" in err
    code, _, err = cli("engine", "prune", "--older-than", "soon")
    assert code == 2
    assert "expected a number with one of the units" in err
