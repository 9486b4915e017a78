"""The paper's claims are judged by conditions, from its own tables and from archives."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mlflow_ngraph import documents, runner
from mlflow_ngraph.cli.app import cli
from mlflow_ngraph.study import parse
from mlflow_ngraph_archives.export import export
from mlflow_ngraph_report import paper
from mlflow_ngraph_report.environment import Machine
from tests.support import reported
from tests.support.scripts import loaded

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "claims.md"
TABLE3, TABLE6, TABLE7 = map(paper.table, ("table3_compile_seconds", "table6_families", "table7_depth_conv"))
BANDS = ("b2_4", "b8_16")
HARDWARE = {"architecture": "x86_64", "cpu": {"vendor": "GenuineIntel"}, "gpus": [], "board": ""}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, whose modules are found where it lies."""
    monkeypatch.syspath_prepend(ROOT / "results")
    return loaded(ROOT / "results" / "claims.py")


@pytest.fixture
def rows(script: ModuleType) -> dict[int, Any]:
    """Claims by number, without any archive."""
    return {row.number: row for row in script.judged(script.archives.Measured())}


def synthetic(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    vendors: Mapping[str, str] = {"xeon": "GenuineIntel"},
    **changes: Any,
) -> dict[int, Any]:
    """Claims judged by complete studies with planted speed-ups, on machines with processors of these vendors."""
    monkeypatch.setattr(reported, "DEPTHS", (1, 2, 3, 4, 5, 6))
    for name, value in changes.items():
        monkeypatch.setattr(reported, name, value)
    devices, batches = tuple(vendors), (1, 2, 4, 8, 16, 32)
    frames = [make(devices=devices, batches=batches) for make in (reported.models, reported.blocks)]
    machines = {
        f"digest-{device}": Machine(
            f"digest-{device}", (device,), {"hardware": {**HARDWARE, "cpu": {"vendor": vendor}}}
        )
        for device, vendor in vendors.items()
    }
    found, devices = script.archives.figures(pd.concat(frames, ignore_index=True), machines)
    return {row.number: row for row in script.judged(script.archives.Measured(found, devices))}


def ratios(column: str, top: str, bottom: str, device: str) -> dict[tuple[str, str], float]:
    """A column of table VI with one compiler over that with another, by family and band."""
    cells = {(row["family"], row["compiler"], row["device"]): row for row in TABLE6}
    return {
        (family, band): float(cells[family, top, device][f"{column}_{band}"])
        / float(cells[family, bottom, device][f"{column}_{band}"])
        for family, band in product(dict.fromkeys(row["family"] for row in TABLE6), BANDS)
    }


def values(answer: Any, condition: int = 0) -> list[float]:
    return sorted(figure.value for figure in answer.judged[condition].condition.figures)


def counts(answer: Any) -> list[tuple[int, int]]:
    """Figures inside and outside of the range of each condition."""
    return [(judged.inside, judged.outside) for judged in answer.judged]


def test_the_pages_are_what_the_script_writes(script: ModuleType, tmp_path: Path) -> None:
    """Claims, tables and figures; reading the archives takes seconds."""
    measured = script.archives.read(sorted((ROOT / "results" / "archives").glob("*.tar")))
    first, second = (script.page.text(script.judged(measured), measured.studies) for _ in range(2))
    assert first == second == PAGE.read_text(encoding="utf-8"), "run make results"
    assert [line for line in first.splitlines() if len(line) > 300] == []
    script.report.write(measured, tmp_path / "measured.md")
    made, kept = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("measured*/*")}
        for place in (tmp_path, PAGE.parent)
    )
    assert made == kept, "run make results"
    assert (tmp_path / "measured.md").read_text() == (PAGE.parent / "measured.md").read_text()


def test_all_claims_are_there_and_name_a_study_that_exists(rows: dict[int, Any]) -> None:
    assert list(rows) == list(range(1, 25))
    ready = {path.stem for path in (ROOT / "mlflow_ngraph" / "studies").glob("*.yaml")}
    command = cli.get_command(click.Context(cli), "benchmark")
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    for row in rows.values():
        studies = [study.split() for study in re.findall("`(.*?)`", row.study)]
        assert {study[0] for study in studies} <= ready
        assert {word for study in studies for word in study if word.startswith("--")} <= options
        assert studies or row.number == 19


def test_nothing_is_measured_without_an_archive(rows: dict[int, Any]) -> None:
    for number, row in rows.items():
        assert row.measured.verdict.value == ("needs a device" if number in (3, 14, 18, 22, 24) else "undecided")
        assert not row.measured.judged


def test_compile_times_follow_from_table_3(rows: dict[int, Any]) -> None:
    seconds = {(row["model"], row["batch_size"]): row for row in TABLE3}
    growth = {
        (name, model): float(seconds[model, "32"][name]) / float(seconds[model, "1"][name])
        for name in ("xeon_openvino", "gpu_tensorrt", "xeon_tvm", "gpu_tvm")
        for model, _ in seconds
    }
    vendors = sorted(ratio for (name, _), ratio in growth.items() if not name.endswith("tvm"))
    assert values(rows[1].tables) == pytest.approx(vendors)
    assert counts(rows[1].tables) == [(0, 10), (8, 2)]
    assert rows[1].tables.verdict.value == "does not hold"
    assert values(rows[2].tables)[-1] == pytest.approx(134262.784 / 3600)
    assert rows[2].tables.verdict.value == "holds"


def test_speedups_follow_from_table_6(rows: dict[int, Any]) -> None:
    openvino, tvm = (ratios("throughput", name, "identity", "xeon") for name in ("openvino", "tvm"))
    assert values(rows[11].tables) == pytest.approx(sorted(openvino.values()))
    assert max(openvino.values()) == pytest.approx(96.04 / 30.80)
    assert rows[11].tables.verdict.value == "does not hold"
    assert min(values(rows[6].tables)) == pytest.approx(tvm["EfficientNets", "b8_16"]) == pytest.approx(20.66 / 47.34)
    assert counts(rows[6].tables) == [(15, 5)]
    assert counts(rows[7].tables) == [(0, 8), (8, 0)]
    assert rows[4].tables.verdict.value == "does not hold"
    assert values(rows[4].tables)[0] == pytest.approx(38.91 / 31.86)


def test_an_interval_follows_from_standard_deviations_of_table_6(rows: dict[int, Any]) -> None:
    """Ten speed-ups share the error probability; a mean is of 100 repetitions."""
    (judged,) = rows[11].tables.judged
    best = max(judged.condition.figures, key=lambda figure: figure.value)
    variances = np.array([2.35 / 96.04, 0.92 / 30.80]) ** 2 / 100
    freedom = variances.sum() ** 2 / (variances**2 / 99).sum()
    reach = stats.t.ppf(1 - 0.05 / 10 / 2, freedom) * math.sqrt(variances.sum())
    assert best.ends(judged.level) == pytest.approx([best.value * math.exp(side) for side in (-reach, reach)])


def test_resilience_is_the_speedup_over_that_of_small_batches(rows: dict[int, Any]) -> None:
    for device, condition in (("orin", 0), ("gpu", 1)):
        speedups = ratios("throughput", "tensorrt", "identity", device)
        expected = sorted(speedups[family, "b8_16"] / speedups[family, "b2_4"] for family, _ in list(speedups)[::2])
        assert values(rows[18].tables, condition) == pytest.approx(expected)
    assert counts(rows[18].tables) == [(5, 0), (0, 5)]
    assert values(rows[19].tables) == pytest.approx([1.0] * 25, abs=1e-12)
    assert rows[19].tables.verdict.value == "undecided"
    tvm, openvino = (ratios("throughput", name, "identity", "xeon") for name in ("tvm", "openvino"))
    both = [one["DeiTs", "b8_16"] / one["DeiTs", "b2_4"] for one in (tvm, openvino)]
    assert values(rows[20].tables) == pytest.approx([both[0] / both[1]])


def test_cpu_use_follows_from_table_6(rows: dict[int, Any]) -> None:
    shares = [
        float(row[f"cpu_percent_{b}"])
        for row in TABLE6
        for b in BANDS
        if (row["compiler"], row["device"]) == ("identity", "xeon")
    ]
    assert values(rows[9].tables) == pytest.approx(sorted(shares))
    changes = ratios("cpu_percent", "openvino", "identity", "xeon")
    assert values(rows[21].tables) == pytest.approx([float(np.exp(np.mean(np.log(list(changes.values())))))])
    assert rows[21].tables.verdict.value == "undecided"
    assert values(rows[22].tables)[0] == pytest.approx(1.25 / 7.20)
    assert rows[22].tables.verdict.value == "holds"


def test_depths_follow_from_tables_7_and_8(rows: dict[int, Any]) -> None:
    vendors = [row for row in TABLE7 if row["compiler"] != "onnx"]
    for condition, name in enumerate(("slope", "retention")):
        expected = sorted(float(row[f"{name}_b{batch}"]) for row in vendors for batch in (8, 16))
        assert values(rows[12].tables, condition) == pytest.approx(expected)
    assert counts(rows[12].tables) == [(12, 0), (4, 8)]
    assert values(rows[14].tables) == [pytest.approx(1.404)]
    assert values(rows[15].tables)[0] == pytest.approx(0.0006561 - 0.4775)
    assert rows[15].tables.verdict.value == "holds"
    assert rows[13].tables.verdict.value == "undecided"
    assert "means 1.16 and 1.26, medians 1.03 and 0.921" in rows[13].tables.judged[0].detail


def test_families_that_change_places_are_named_right(rows: dict[int, Any]) -> None:
    """As the note of claim 3 says."""
    rates = {
        (row["family"], row["compiler"], row["device"], band): float(row[f"throughput_{band}"])
        for row in TABLE6
        for band in BANDS
    }
    for device, compiler, band in product(("xeon", "orin"), ("openvino", "tensorrt"), BANDS):
        if ("Swins", compiler, device, band) in rates:
            leads = {
                other: [
                    rates["EfficientNets", one, device, band] > rates[other, one, device, band]
                    for one in ("identity", compiler)
                ]
                for other in ("Swins", "DeiTs")
            }
            assert leads["Swins"] == [True, True]
            assert leads["DeiTs"][0] != leads["DeiTs"][1]
    assert counts(rows[3].tables) == [(0, 2), (0, 2)]


def test_planted_speedups_decide_claims(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = synthetic(script, monkeypatch)
    told = {number: row.measured.verdict.value for number, row in found.items()}
    assert told[12] == told[15] == "holds"  # speed-ups grow with depth, by more where they are larger
    assert told[11] == told[7] == "does not hold"  # no speed-up above 5; OpenVINO is slower on Swins
    assert told[6] == "undecided"  # nobody measured TVM and TorchScript
    assert "60 yes, 60 not measured" in found[6].measured.judged[0].detail
    assert told[14] == told[18] == told[22] == told[24] == "needs a device"
    page = script.page.text(list(found.values()), [("planted",)])
    assert [line for line in page.splitlines() if len(line) > 300] == []


def test_fast_engines_turn_a_verdict_around(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = synthetic(script, monkeypatch, GAIN={**reported.GAIN, "openvino": 4.5})
    assert found[11].measured.verdict.value == "holds"  # 1.4 times 4.5 on EfficientNets
    assert found[4].measured.verdict.value == "does not hold"  # and so above 6 at batch 1


@pytest.mark.parametrize(("vendor", "verdict"), [("AuthenticAMD", "holds"), ("GenuineIntel", "needs a device")])
def test_two_vendors_tell_if_results_generalise(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, vendor: str, verdict: str
) -> None:
    found = synthetic(script, monkeypatch, {"xeon": "GenuineIntel", "host": vendor})
    assert found[24].measured.verdict.value == verdict


def test_one_result_counts_for_each_cell(script: ModuleType) -> None:
    """The rule asks for no figure: rounds, then batch sizes of the study, then the date; but a wrong engine stays wrong."""
    sweep = reported.models(devices=("xeon",), batches=(1, 16)).assign(rounds=4.0)
    later = sweep[sweep["batch"].eq(1)].assign(study_id="later", started_at=sweep["started_at"] + 9e4)

    def chosen(*others: pd.DataFrame) -> set[str]:
        each = script.archives.one_each(pd.concat([sweep, *others], ignore_index=True))
        assert len(each) == len(sweep)
        return set(each.loc[each["batch"].eq(1), "study_id"])

    assert chosen(later) == {"models-xeon"}  # of as many rounds, and fewer batch sizes
    assert chosen(later.assign(rounds=5.0)) == {"later"}
    assert chosen(later.assign(rounds=np.nan, verdict="failed")) == {"models-xeon"}
    assert chosen(later.assign(rounds=np.nan, verdict="parity_failed")) == {"later"}
    again = sweep.assign(study_id="again", started_at=sweep["started_at"] + 9e4)
    assert chosen(again) == {"again"}


def test_figures_of_two_studies_break_no_definition(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The BSR of one study is not the ratio of speed-ups of two."""
    sweep = reported.models(devices=("xeon",), batches=(1, 16)).assign(rounds=4.0)
    slower = sweep[sweep["batch"].eq(1)].assign(study_id="other", rounds=9.0, speedup=sweep["speedup"] / 2)
    machine = Machine("digest-xeon", ("xeon",), {"hardware": HARDWARE}, {})
    found, _ = script.archives.figures(pd.concat([sweep, slower], ignore_index=True), {"digest-xeon": machine})
    assert script.select(found, "speed-up", batch=1)
    assert not script.select(script.derived(found), "BSR over its definition")
    alone, _ = script.archives.figures(sweep, {"digest-xeon": machine})
    identities = script.select(script.derived(alone), "BSR over its definition")
    assert identities
    assert [one.value for one in identities] == pytest.approx([1.0] * len(identities))


def test_an_interval_that_bounds_nothing_is_not_printed(script: ModuleType) -> None:
    wide = script.Figure("speed-up", script.archives.Estimate(np.log(2), np.array(0.5), np.array(1.0)), machine="a")
    judged = script.by_measurements([script.Condition("speed-ups", [wide], low=1)], {"xeon"}).judged[0]
    assert "speed-ups: 2 (too few rounds to bound it), needs above 1" in judged.brief


def test_an_interval_that_includes_the_border_is_undecided(script: ModuleType) -> None:
    condition, by_tables = script.Condition, script.by_tables

    def figure(value: float, error: float) -> Any:
        return script.Figure(
            "speed-up", script.archives.Estimate(np.log(value), np.array(error), np.array(9.0)), machine="a"
        )

    def verdict(**asked: Any) -> str:
        return str(script.by_measurements([condition("speed-ups", **asked)], {"xeon"}).verdict.value)

    sure, unsure, slow = figure(1.2, 0.01), figure(1.02, 0.02), figure(0.8, 0.01)
    assert verdict(figures=[sure], low=1) == "holds"
    assert verdict(figures=[sure, unsure], low=1) == "undecided"
    assert verdict(figures=[sure, unsure, slow], low=1) == "does not hold"
    assert verdict(figures=[sure], low=1, full=2) == "undecided"
    assert verdict(figures=[sure, slow], low=1, of="one", full=9) == "holds"
    assert verdict(figures=[slow], low=1, of="one", full=2) == "undecided"
    assert verdict(figures=[slow], low=1, of="one", full=1) == "does not hold"
    assert verdict(figures=[sure, sure, slow], low=1, of="most", full=3) == "holds"
    assert verdict(figures=[], low=1, device="gpu") == "needs a device"
    assert verdict(figures=[], low=1, device="xeon") == "undecided"
    assert by_tables([condition("speed-ups", [], low=1)]).verdict.value == "nothing there"
    # The more figures a claim has, the wider each interval is.
    wide, narrow = (by_tables([condition("", [unsure] * count, low=1)]).judged[0].level for count in (20, 1))
    assert (wide, narrow) == pytest.approx((1 - 0.05 / 20, 0.95))


@pytest.mark.usefixtures("processes", "compilers")
def test_an_archive_without_engines_gives_figures(script: ModuleType, tmp_path: Path) -> None:
    asked = {
        "name": "sitting", "workloads": ["block:mha?width=128&depth=1"], "compilers": ["identity", "torchscript"], "batch_sizes": [8],
        "repetitions": 6, "slice_repetitions": 3, "threads": 1, "warmup": {"window": 2, "max_seconds": 0.2},
    }  # fmt: skip
    directory = runner.run_study(parse(asked), home=tmp_path, offline=True).directory
    for path in sorted((directory / "engines").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    archive = export([directory], tmp_path / "sitting.tar")
    assert archive.lacking
    measured = script.archives.read([archive.path])
    assert measured.devices == {"xeon"}
    (speedup,) = script.select(measured.figures, "speed-up", block="mha", width=128, batch=8)
    assert speedup.compiler == "torchscript"
    assert "sitting" in measured.studies[0][1]
    again = script.archives.read([archive.path])
    pages = {script.page.text(script.judged(one), one.studies) for one in (measured, again)}
    assert len(pages) == 1


def claims(*arguments: object, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "results" / "claims.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)


@pytest.mark.usefixtures("processes")
def test_a_page_of_ones_own_takes_nothing_away(tmp_path: Path) -> None:
    (tmp_path / "page-measured").mkdir()
    mine = [tmp_path / "page-measured" / "mine.csv", tmp_path / "measured.md"]
    for path in mine:
        path.write_text("mine")
    archive = ROOT / "results" / "archives" / "builds-epyc.tar"
    done = claims(archive, archive, "--output", "page.md", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in mine] == ["mine", "mine"]
    assert (tmp_path / "page-measured" / "t3.csv").is_file()
    listed = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| builds-epyc.tar")]
    assert len(listed) == len(set(listed)) == 4


@pytest.mark.usefixtures("processes")
def test_what_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    for place in ("nowhere/page.md", "."):
        done = claims("--output", place, directory=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_conditions_have_known_keys() -> None:
    claims = documents.from_yaml(ROOT / "results" / "claims.yaml")
    assert all(
        {"claim", "place", "study", "conditions"} <= set(claim) <= {"claim", "place", "study", "conditions", "note"}
        for claim in claims
    )
    assert all("|" not in claim["claim"] for claim in claims)
