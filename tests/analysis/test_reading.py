"""Reading back what many studies recorded: always what the server has, whatever this machine has kept."""

from __future__ import annotations

import hashlib
import operator
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import platformdirs
import pytest
from mlflow import MlflowClient

from benchmarks import seed_server
from mlflow_ngraph import load_results
from mlflow_ngraph.analysis import listing, table_cache
from mlflow_ngraph.errors import TrackingError, UsageError
from mlflow_ngraph.tracking import plain_http
from mlflow_ngraph.tracking.schema import Artifact, Kind, Tag
from tests.support.servers import OURS

STUDIES = 3
READ = "reading"


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Studies of two workloads and two compilers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seed_server, "WORKLOADS_A_STUDY", 2)
        patch.setattr(seed_server, "COMPILERS_A_STUDY", 2)
        yield


@pytest.fixture
def seeded(sqlite_uri: str) -> str:
    seed_server.seed(sqlite_uri, STUDIES)
    return sqlite_uri


@pytest.fixture(scope="module")
def recorded(mlflow_server: str) -> str:
    """A server on PostgreSQL that has two studies."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OURS:
            patch.delenv(name, raising=False)
        seed_server.seed(mlflow_server, 2, experiment=READ)
    return mlflow_server


def study_runs(uri: str) -> list[str]:
    client = MlflowClient(uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.run_id for run in client.search_runs(ids, f"tags.`{Tag.KIND}` = 'study'")]


def kept() -> list[str]:
    return sorted(path.name for path in Path(platformdirs.user_cache_dir("mlflow-ngraph"), "results").glob("*/*.arrow"))


def write_table(uri: str, run_id: str, table: pd.DataFrame, directory: Path) -> None:
    """Record a study again, as a recorder does: the file, then the tag."""
    path = directory / Artifact.RESULTS
    table.to_parquet(path, index=False)
    MlflowClient(uri).log_artifact(run_id, str(path))
    MlflowClient(uri).set_tag(run_id, Tag.RESULTS_SHA256, hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_second_reading_is_the_same_and_fetches_nothing(seeded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_results(seeded)
    assert len(first) == STUDIES * 2 * 2 * len(seed_server.BATCHES)
    assert len(kept()) == STUDIES
    monkeypatch.setattr(table_cache, "_quickly", lambda *_: pytest.fail("fetched again"))
    monkeypatch.setattr(table_cache, "_patiently", lambda *_: pytest.fail("fetched again"))
    pd.testing.assert_frame_equal(load_results(seeded), first)


@pytest.mark.usefixtures("compilers")
@pytest.mark.usefixtures("clean_environment")
def test_every_way_of_asking_finds_the_same(recorded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = listing.Server(recorded)
    plainly = server.study_runs()
    quick = load_results(recorded, [READ], cache=False)
    monkeypatch.setattr(plain_http, "speaks", lambda uri: False)
    by_id = operator.attrgetter("run_id")
    assert sorted(server.study_runs(), key=by_id) == sorted(plainly, key=by_id)
    pd.testing.assert_frame_equal(load_results(recorded, [READ], cache=False), quick)


def test_tables_on_this_machine_are_those_that_the_client_brings(seeded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_results(seeded, cache=False)
    monkeypatch.setattr(listing, "_local", lambda uri, name: None)
    pd.testing.assert_frame_equal(load_results(seeded, cache=False), first)


@pytest.mark.usefixtures("compilers")
@pytest.mark.usefixtures("clean_environment")
def test_a_server_on_postgresql_gives_what_its_database_gives(recorded: str, postgres_uri: str) -> None:
    through = load_results(recorded, [READ])
    assert load_results(recorded, [READ], cache=False).equals(through)
    # The artifacts lie with the server: the database alone knows the runs, and the server the files.
    runs = {run.run_id: run.tags for run in listing.Server(postgres_uri).study_runs()}
    assert runs == {run.run_id: run.tags for run in listing.Server(recorded).study_runs()}
    assert set(through["run_id"]) <= set(runs)


def test_runs_of_other_workspaces_are_not_listed(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    runs = {}
    for workspace in ("one", "two"):
        MlflowClient(sqlite_uri).create_workspace(workspace)
        monkeypatch.setenv("MLFLOW_WORKSPACE", workspace)
        client = MlflowClient(sqlite_uri)
        run = client.create_run(client.create_experiment("studies"), tags={Tag.KIND: Kind.STUDY})
        runs[workspace] = run.info.run_id
    for workspace, run_id in runs.items():
        monkeypatch.setenv("MLFLOW_WORKSPACE", workspace)
        assert [run.run_id for run in listing.Server(sqlite_uri).study_runs()] == [run_id]


def test_what_is_deleted_restored_or_recorded_again_is_noticed(seeded: str, tmp_path: Path) -> None:
    everything = load_results(seeded)
    client = MlflowClient(seeded)
    gone, changed, _ = study_runs(seeded)
    client.delete_run(gone)
    assert gone not in set(load_results(seeded)["run_id"])
    assert len(kept()) == STUDIES - 1
    client.restore_run(gone)
    assert len(load_results(seeded)) == len(everything)
    table = pd.read_parquet(client.download_artifacts(changed, Artifact.RESULTS))
    table["cpu_percent"] = 7.0
    write_table(seeded, changed, table, tmp_path)
    again = load_results(seeded)
    assert set(again.loc[again["run_id"] == changed, "cpu_percent"]) == {7.0}
    assert len(kept()) == STUDIES
    client.set_tag(changed, Tag.RESUMED_BY, gone)
    assert changed not in set(load_results(seeded)["run_id"])
    assert not load_results(seeded, run=changed).empty


def test_a_table_that_is_not_the_one_of_the_tag_is_refused_and_named(
    seeded: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = study_runs(seeded)[0]
    MlflowClient(seeded).set_tag(run_id, Tag.RESULTS_SHA256, "0" * 64)
    assert set(load_results(seeded)["run_id"]) == {*study_runs(seeded)} - {run_id}
    assert len(kept()) == STUDIES - 1
    (told,) = caplog.messages
    assert told.startswith(f"run {run_id} of experiment 'seeded': results.parquet is not the file whose digest")


def test_a_damaged_cache_is_read_again(seeded: str) -> None:
    first = load_results(seeded)
    for path in Path(platformdirs.user_cache_dir("mlflow-ngraph"), "results").glob("*/*"):
        path.write_bytes(path.read_bytes()[:100])
    pd.testing.assert_frame_equal(load_results(seeded), first)


def test_a_cache_that_cannot_be_written_costs_only_time(
    seeded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(load_results(seeded)) == STUDIES * 2 * 2 * len(seed_server.BATCHES)


def test_readers_and_writers_at_once(seeded: str, tmp_path: Path) -> None:
    """Whoever reads while a study is recorded again sees it as it was or as it is, never half of it."""
    run_id = study_runs(seeded)[0]
    table = pd.read_parquet(MlflowClient(seeded).download_artifacts(run_id, Artifact.RESULTS))

    def write(number: int) -> None:
        place = tmp_path / str(number)
        place.mkdir()
        write_table(seeded, run_id, table.assign(cpu_percent=float(number)), place)

    def write_again() -> None:
        for number in range(1, 12):
            write(number)

    write(0)
    with ThreadPoolExecutor(4) as pool:
        writing = pool.submit(write_again)
        seen = [pool.submit(load_results, seeded, run=None) for _ in range(12)]
        values = [frame.result() for frame in seen]
        writing.result()
    for frame in [*values, load_results(seeded)]:
        found = frame.loc[frame["run_id"] == run_id, "cpu_percent"]
        assert (len(found), found.nunique()) == (len(table), 1)
    assert set(found) == {11.0}


def test_filters(seeded: str) -> None:
    everything = load_results(seeded)
    one = everything.iloc[0]
    found = load_results(
        seeded, ["seeded"], devices=[one["device"]], workloads=[one["label"]], compilers=["identity"], batch_sizes=[8],
        families=[one["family"]], precisions=["fp32"], studies=[one["study_id"]], git_commits=[one["git_commit"][:7]],
        tags={"mlflow.user": "seed"}, since="2025-01-01", until="2026-01-01",
    )  # fmt: skip
    assert len(found) == 1
    assert load_results(seeded, tags={"mlflow.user": "nobody"}).empty
    assert load_results(seeded, since="7d").empty
    first = everything["started_at"].min()
    later = load_results(seeded, since=pd.Timestamp(first + 1, unit="s", tz="UTC").to_pydatetime())
    assert set(later["study_id"]) == set(everything.loc[everything["started_at"] > first, "study_id"])
    with pytest.raises(UsageError, match="'yesterday' is no time"):
        load_results(seeded, since="yesterday")
    assert list(load_results(seeded, columns=["cell", "throughput"]).columns) == ["cell", "throughput"]


def test_several_servers_at_once(
    seeded: str, sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "mlflow.db"
    other.parent.mkdir()
    other.write_bytes(sqlite_template.read_bytes())
    monkeypatch.chdir(other.parent)
    seed_server.seed(f"sqlite:///{other}", STUDIES + 1, experiment="elsewhere")
    both = load_results([seeded, f"sqlite:///{other}"])
    assert both["study_id"].nunique() == STUDIES + 1
    assert set(both["tracking_uri"]) == {seeded, f"sqlite:///{other}"}
    assert set(both["experiment"]) == {"seeded", "elsewhere"}
    with pytest.raises(TrackingError):
        load_results([seeded, "http://127.0.0.1:9"])


@pytest.mark.usefixtures("compilers")
@pytest.mark.usefixtures("clean_environment")
def test_mlflow_is_not_imported_for_a_plain_server(recorded: str) -> None:
    program = (
        "import sys; from mlflow_ngraph import load_results; load_results(sys.argv[1]);"
        "sys.exit(', '.join({'mlflow', 'torch', 'pydantic'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", program, recorded], check=True, timeout=60)


def test_tables_of_other_versions_fit_together(seeded: str, tmp_path: Path) -> None:
    old, new, _ = study_runs(seeded)
    client = MlflowClient(seeded)
    table = pd.read_parquet(client.download_artifacts(old, Artifact.RESULTS))
    (tmp_path / "a").mkdir()
    write_table(seeded, old, table.drop(columns=["engine_reused", "bsr"]), tmp_path / "a")
    (tmp_path / "b").mkdir()
    own = client.get_run(new).data.tags[Tag.STUDY_ID]
    write_table(seeded, new, table.assign(run_id=new, study_id=own, from_the_future=1.5), tmp_path / "b")
    frame = load_results(seeded)
    assert frame.loc[frame["run_id"] == old, "bsr"].isna().all()
    assert frame["from_the_future"].dropna().nunique() == 1
    assert frame.columns[-1] == "from_the_future"
