"""An engine becomes the champion if it is better than the one before, and the registry says why."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_ngraph
from mlflow_ngraph.engines import signing, trust
from mlflow_ngraph.errors import EngineError, TrackingError, UnknownNameError, UsageError
from mlflow_ngraph.tracking import connection, model_registry
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph_engines import promotion, registry
from mlflow_ngraph_engines.promotion import Promotion
from mlflow_ngraph_engines.registry import Registry
from tests.support.logged import Logged
from tests.support.variants import Shelf

NAME, ALIAS = "resnet", "xeon-champion"


def promote(shelf: Shelf, model: str, **options: Any) -> Promotion:
    return promotion.promote(model, NAME, tracking_uri=shelf.uri, **options)


def champion(shelf: Shelf) -> str | None:
    found = Registry(MlflowClient(shelf.uri), shelf.uri).champion(NAME, ALIAS)
    return None if found is None else model_registry.model_id_of(found)


def versions(shelf: Shelf) -> list[Any]:
    return list(MlflowClient(shelf.uri).search_model_versions(f"name='{NAME}'"))


def test_the_first_one_is_the_champion(shelf: Shelf) -> None:
    model = shelf.put(100.0)
    found = promote(shelf, model)
    assert (found.state, found.alias, found.version, found.over) == ("promoted", ALIAS, "1", None)
    assert champion(shelf) == model
    version = MlflowClient(shelf.uri).get_model_version_by_alias(NAME, ALIAS)
    logged = MlflowClient(shelf.uri).get_logged_model(model)
    assert version.tags[Tag.MANIFEST_SHA256] == logged.tags[Tag.MANIFEST_SHA256]
    assert version.tags[Tag.DEVICE] == "xeon"
    assert json.loads(logged.tags["mlflow.modelVersions"]) == [{"name": NAME, "version": 1}]
    record = json.loads(version.tags[f"{Tag.PROMOTED}{ALIAS}"])
    assert (record["metric"], record["value"], record["over"], record["overruled"]) == ("throughput", 100.0, None, [])
    for told in (
        "by openvino, fp32",
        "| throughput [samples/s] | 100 [99, 101] |",
        f"| models:/{model} |",
        "| machine | f1",
        "| flags |",
    ):
        assert told in version.description
    with mlflow_ngraph.load_model(f"models:/{NAME}@{ALIAS}", tracking_uri=shelf.uri) as engine:
        assert tuple(engine.batch_sizes) == (1, 4)


def test_a_better_one_takes_its_place(shelf: Shelf) -> None:
    promote(shelf, shelf.put(100.0))
    better = shelf.put(120.0, compiler="onnxruntime")
    found = promote(shelf, better)
    assert (found.state, found.version, found.over) == ("promoted", "2", "1")
    assert found.comparison is not None
    assert found.comparison.ratio == pytest.approx(1.2)
    assert champion(shelf) == better
    assert "version 1 before" in found.description
    assert "throughput ratio 1.200 [" in found.description


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"throughput": 90.0}, "not significantly better than the champion, version 1: throughput ratio 0.900"),
        ({"throughput": 100.1}, "not significantly better"),
        ({"throughput": 200.0, "verdict": "timeout"}, "its verdict at batch 1 is timeout (it hung)"),
        ({"throughput": 200.0, "machine": "f2"}, "has another machine: f1, not f2"),
        (
            {"throughput": 200.0, "change": lambda manifest: manifest["spec"].update(workload="timm:vit")},
            "has another workload: block:mha?depth=1&width=16, not timm:vit",
        ),
        (
            {"throughput": 200.0, "change": lambda manifest: manifest["spec"]["outputs"][0].update(name="logits")},
            "has other outputs: ",
        ),
        ({"throughput": 200.0, "change": lambda manifest: manifest.update(figures=[])}, "it has no throughput"),
    ],
)
def test_what_is_not_good_enough_stays_out(shelf: Shelf, how: dict[str, Any], said: str) -> None:
    promote(shelf, shelf.put(100.0))
    model = shelf.put(**how)
    before = champion(shelf)
    found = promote(shelf, model)
    assert found.state == "refused"
    assert any(said in objection for objection in found.objections), found.objections
    assert champion(shelf) == before
    assert len(versions(shelf)) == 1
    forced = promote(shelf, model, force=True)
    assert forced.state == "promoted"
    assert champion(shelf) == model
    version = MlflowClient(shelf.uri).get_model_version_by_alias(NAME, ALIAS)
    assert json.loads(version.tags[f"{Tag.PROMOTED}{ALIAS}"])["overruled"] == list(forced.objections)
    assert "Promoted by force, although:" in version.description


def test_the_same_one_again_changes_nothing(shelf: Shelf) -> None:
    model = shelf.put(100.0)
    promote(shelf, model)
    before = MlflowClient(shelf.uri).get_registered_model(NAME)
    found = promote(shelf, model)
    assert (found.state, found.version, found.objections) == ("unchanged", "1", ())
    assert MlflowClient(shelf.uri).get_registered_model(NAME).last_updated_timestamp == before.last_updated_timestamp


def test_a_version_that_exists_is_used_again(shelf: Shelf) -> None:
    model = shelf.put(100.0)
    promote(shelf, model, alias="other")
    found = promote(shelf, model)
    assert (found.state, found.version) == ("promoted", "1")
    assert set(MlflowClient(shelf.uri).get_registered_model(NAME).aliases) == {"other", ALIAS}


def test_a_dry_run_writes_nothing(shelf: Shelf, signing_key: Path) -> None:
    model = shelf.put(100.0)
    found = promote(shelf, model, dry_run=True, sign=signing.load_key(signing_key))
    assert found.state == "possible"
    assert not MlflowClient(shelf.uri).search_registered_models()
    assert Tag.SIGNED_BY not in MlflowClient(shelf.uri).get_logged_model(model).tags


def test_batch_sizes_can_be_compared(shelf: Shelf) -> None:
    promote(shelf, shelf.put(100.0, batches=(1, 4)))
    found = promote(shelf, shelf.put(120.0, batches=(4,)), batch=1)
    assert found.objections == ("it has no throughput at batch 1",)
    assert promote(shelf, shelf.put(130.0, batches=(4,)), batch=4).state == "promoted"


def test_other_metrics_can_decide(shelf: Shelf) -> None:
    promote(shelf, shelf.put(100.0))
    assert promote(shelf, shelf.put(200.0), metric="latency_p50_ms", alias=ALIAS).state == "promoted"
    found = promote(shelf, shelf.put(300.0), metric="cpu_percent", alias=ALIAS)
    assert found.state == "refused"
    assert "without an interval" in found.objections[0]
    with pytest.raises(UnknownNameError, match="metric 'speed'"):
        promote(shelf, shelf.put(1.0), metric="speed")


def test_a_signature_comes_with_it(shelf: Shelf, signing_key: Path, tmp_path: Path) -> None:
    model = shelf.put(100.0)
    found = promote(shelf, model, sign=signing.load_key(signing_key))
    assert found.signed_by == MlflowClient(shelf.uri).get_logged_model(model).tags[Tag.SIGNED_BY]
    rules = tmp_path / "trust.yaml"
    rules.write_text(f"signers: {{alice: '{signing_key.with_suffix('.pub').read_text().strip()}'}}\n")
    with mlflow_ngraph.load_model(f"models:/{NAME}@{ALIAS}", tracking_uri=shelf.uri, trust=rules):
        pass
    with pytest.raises(EngineError, match="it is not signed"):
        mlflow_ngraph.load_model(f"models:/{shelf.put(1.0)}", tracking_uri=shelf.uri, trust=rules)
    assert trust.load(rules).signers


def test_a_champion_that_is_gone_cannot_be_compared(shelf: Shelf) -> None:
    first = shelf.put(100.0)
    promote(shelf, first)
    MlflowClient(shelf.uri).delete_logged_model(first)
    found = promote(shelf, shelf.put(200.0))
    assert found.state == "refused"
    assert "there is nothing to compare with" in found.objections[0]


def test_wrong_requests_are_said_in_one_line(shelf: Shelf) -> None:
    model = shelf.put(100.0)
    for alias in ("latest", "v1", "a b", ""):
        with pytest.raises(UsageError, match="alias"):
            promote(shelf, model, alias=alias or "!")
    with pytest.raises(TrackingError, match="cannot"):
        promote(shelf, "m-" + "0" * 32)
    with pytest.raises(TrackingError):
        promote(shelf, "f" * 32)


def test_two_who_promote_at_the_same_time_do_not_overwrite_each_other(shelf: Shelf) -> None:
    promote(shelf, shelf.put(100.0))
    client = MlflowClient(shelf.uri)
    names = Registry(client, shelf.uri)
    with connection.talking(shelf.uri, "test", {}), names.promoting(NAME, ALIAS, "1"):
        with pytest.raises(TrackingError, match=r"somebody else is promoting an engine to resnet@xeon-champion"):
            promote(shelf, shelf.put(120.0))
        assert promote(shelf, shelf.put(120.0), alias="other").state == "promoted"
    assert promote(shelf, shelf.put(130.0)).state == "promoted"
    with (
        pytest.raises(TrackingError, match="has changed meanwhile: it was version 1 and is version 3 now"),
        names.promoting(NAME, ALIAS, "1"),
    ):
        pytest.fail("the champion had changed")
    assert not [tag for tag in client.get_registered_model(NAME).tags if tag.startswith(Tag.PROMOTING)]


def test_who_was_killed_keeps_nobody_waiting(shelf: Shelf) -> None:
    promote(shelf, shelf.put(100.0))
    left = f"{Tag.PROMOTING}{ALIAS}.somebody"
    client = MlflowClient(shelf.uri)
    client.set_registered_model_tag(NAME, left, str(time.time() - registry.STALE_S - 1))
    assert promote(shelf, shelf.put(120.0)).state == "promoted"
    assert left not in client.get_registered_model(NAME).tags


def test_an_engine_of_a_study_is_judged_by_the_table(logged: Logged) -> None:
    """Figures of the tidy table, and a run that is named instead of a model."""
    client = MlflowClient(logged.uri)
    lane = client.get_logged_model(logged.models["openvino"]).source_run_id
    found = promotion.promote(lane, "of-a-study", accept_undecided=True, tracking_uri=logged.uri)
    assert found.state == "promoted"
    assert found.candidate.model_id == logged.models["openvino"]
    assert set(found.candidate.cells["batch"]) == {1, 4}
    assert found.candidate.cells["run_id"].notna().all()
    assert f"| {lane} |" in found.description
    other = promotion.promote(logged.models["onnxruntime"], "of-a-study", alias=found.alias, tracking_uri=logged.uri)
    assert other.comparison is not None
    study = client.get_run(lane).data.tags["mlflow.parentRunId"]
    with pytest.raises(UsageError, match=r"has \d engines"):
        promotion.promote(study, "of-a-study", tracking_uri=logged.uri)
