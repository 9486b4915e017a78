"""``list`` names the engines of a server, with what is known of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.tracking import download
from tests.support.logged import Logged
from tests.support.variants import Shelf

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.usefixtures("clean_environment")
def test_the_engines_of_a_study(logged: Logged, cli: Cli, cli_json: Callable[..., Any]) -> None:
    engines = {one["model_id"]: one for one in cli_json("engine", "list", "--tracking-uri", logged.uri)["engines"]}
    assert set(logged.models.values()) <= set(engines)
    found = engines[logged.models["openvino"]]
    assert (found["compiler"], found["precision"], found["batch_sizes"], found["verdict"]) == (
        "openvino", "fp32", [1, 4], "ok",
    )  # fmt: skip
    assert found["throughput"] > 0
    assert found["size_mb"] > 0
    assert found["fits"] is True
    assert found["signed_by"] is None
    assert found["age_s"] >= 0
    code, out, _ = cli("engine", "list", "--tracking-uri", logged.uri, "--compilers", "openvino")
    assert code == 0
    assert logged.models["openvino"] in out
    assert logged.models["onnxruntime"] not in out
    code, _, err = cli("engine", "list", "--tracking-uri", logged.uri, "--compilers", "openvin")
    assert code == 2
    assert "did you mean 'openvino'" in err


def test_names_signatures_and_what_does_not_fit(shelf: Shelf, cli_json: Callable[..., Any], signing_key: Path) -> None:
    def needs_another(manifest: dict[str, Any]) -> None:
        manifest["spec"]["requires"]["openvino"] = "1999.1.0"

    model, other = shelf.put(100.0), shelf.put(200.0, change=needs_another)
    cli_json("engine", "promote", model, "--name", "resnet", "--sign", str(signing_key))
    one, two = cli_json("engine", "list")["engines"]
    assert (one["model_id"], one["fits"], one["throughput"]) == (other, False, 200.0)
    assert "it needs openvino 1999.1.0" in one["misfit"]
    assert (two["model_id"], two["fits"], two["aliases"], two["versions"]) == (
        model, True, ["resnet@xeon-champion"], ["resnet/1"],
    )  # fmt: skip
    assert two["signed_by"].startswith("SHA256:")
    assert [engine["model_id"] for engine in cli_json("engine", "list", "--fits")["engines"]] == [model]
    assert [engine["model_id"] for engine in cli_json("engine", "list", "--champions")["engines"]] == [model]


def test_manifests_are_fetched_once(
    shelf: Shelf, cli_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.put(100.0)
    first = cli_json("engine", "list")
    monkeypatch.setattr(download, "manifest", lambda remote: pytest.fail("it was fetched again"))
    again = cli_json("engine", "list")
    assert again["engines"][0]["fits"] is first["engines"][0]["fits"] is True


@pytest.mark.usefixtures("shelf")
def test_there_may_be_none(cli: Cli) -> None:
    assert cli("engine", "list")[:2] == (0, "no engines\n")
