"""Every name of TensorRT and of the CUDA runtime that the adapter uses exists in the real bindings.

``data/tensorrt_api.json`` lists the members and signatures of the Python bindings of TensorRT 10.3 (JetPack 6.2), 10.16
and 11.4, ``data/cuda_runtime_api.json`` those of cuda-bindings 12.9 and 13.5. They were read from the real wheels.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mlflow_ngraph

DATA = Path(__file__).with_name("data")
TENSORRT: dict[str, Any] = json.loads((DATA / "tensorrt_api.json").read_text())
CUDA: dict[str, Any] = json.loads((DATA / "cuda_runtime_api.json").read_text())
COMPILERS = Path(mlflow_ngraph.__file__).parent / "compilers"
ADAPTER = sorted((COMPILERS / "tensorrt").glob("*.py"))

NAMES = {
    "trt": "module",
    "logger": "ILogger",
    "builder": "Builder",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "error": "ParserError",
    "config": "IBuilderConfig",
    "profile": "IOptimizationProfile",
    "timings": "ITimingCache",
    "earlier": "ITimingCache",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "inspector": "EngineInspector",
    "layer": "ILayer",
    "kinds": "NetworkDefinitionCreationFlag",
    "level": "HardwareCompatibilityLevel",
}
"""What the adapter calls the objects of TensorRT."""
OURS = {("ILogger", "errors"), ("ILogger", "edition"), ("ILogger", "listing")}
"""What the adapter adds to them."""
PROPERTIES = {
    ("ILayer", "type"): "LayerType",
    ("ITensor", "dtype"): "DataType",
    ("IBuilderConfig", "hardware_compatibility_level"): "HardwareCompatibilityLevel",
}
"""The types of properties, which the bindings do not tell."""
OF_ENUMERATIONS = {"name", "value"}


class Uses(ast.NodeVisitor):
    """Collects the members of TensorRT's objects that a source file uses, and those it asks for before."""

    def __init__(self, listing: dict[str, Any], names: Mapping[str, str] = NAMES) -> None:
        self.listing = listing
        self.names = names
        self.found: set[tuple[str, str]] = set()
        self.guarded: set[tuple[str, str]] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        kind = self.kind(node.value)
        if kind is not None:
            self.found.add((kind, node.attr))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "hasattr":
            kind, name = self.kind(node.args[0]), node.args[1]
            assert kind is not None
            members = [str(name.value)] if isinstance(name, ast.Constant) else self.listing["enums"].get(kind, [])
            self.guarded |= {(kind, member) for member in members}
        self.generic_visit(node)

    def kind(self, node: ast.expr) -> str | None:
        """What an expression is, if it is of TensorRT."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.kind(node.value)
            if owner == "module":
                return node.attr
            if owner is not None:
                return PROPERTIES.get((owner, node.attr))
            return self.names.get(node.attr) if node.attr in ("trt", "engine", "logger") else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = self.kind(node.func.value)
            signatures = self.listing["classes"].get(owner, {}).get(node.func.attr, [])
            returns = {signature.rpartition("-> ")[2] for signature in signatures if isinstance(signatures, list)}
            known = {name.rpartition("::")[2].removeprefix("I") for name in returns} & {"ParserError"}
            return "ParserError" if known else next((name for name in returns if name in self.listing["classes"]), None)
        return None


def used(listing: dict[str, Any]) -> Uses:
    uses = Uses(listing)
    for path in ADAPTER:
        uses.visit(ast.parse(path.read_text(encoding="utf-8")))
    return uses


def exists(listing: dict[str, Any], kind: str, name: str) -> bool:
    if kind == "module":
        return name in listing["top"] or name == "__version__"
    if kind in listing["enums"]:
        return name in listing["enums"][kind] or name in OF_ENUMERATIONS
    return name in listing["classes"][kind] or (kind, name) in OURS or name == "__init__"


@pytest.mark.parametrize("version", TENSORRT)
def test_every_name_of_tensorrt_exists_or_is_asked_for_first(version: str) -> None:
    listing = TENSORRT[version]
    uses = used(listing)
    missing = {(kind, name) for kind, name in uses.found - uses.guarded if not exists(listing, kind, name)}
    assert missing == set()
    assert len(uses.found) > 60, "the test looks at nothing"


def test_a_name_that_does_not_exist_is_found() -> None:
    listing = TENSORRT["11.4.0.106"]
    uses = Uses(listing)
    source = "config.set_flag(trt.BuilderFlag.FP16)\nnetwork.get_output(0).nome\nbuilder.create_network(0).get_layer(1).type.kind"
    uses.visit(ast.parse(source))
    missing = {(kind, name) for kind, name in uses.found if not exists(listing, kind, name)}
    assert missing == {("BuilderFlag", "FP16"), ("ITensor", "nome"), ("LayerType", "kind")}


@pytest.mark.parametrize("version", TENSORRT)
def test_names_that_are_put_together_exist(version: str) -> None:
    from mlflow_ngraph.compilers.tensorrt import building, configuration

    listing = TENSORRT[version]
    assert set(building._HEAVY) <= set(listing["enums"]["LayerType"])
    assert set(building._TYPES.values()) <= set(listing["enums"]["DataType"])
    levels = set(configuration.LEVELS.values())
    assert levels - set(listing["enums"]["HardwareCompatibilityLevel"]) <= {"SAME_COMPUTE_CAPABILITY"}
    assert any(name.startswith("UNSUPPORTED") for name in listing["enums"]["ErrorCode"])


@pytest.mark.parametrize("version", CUDA)
def test_every_name_of_the_cuda_runtime_exists(version: str) -> None:
    listing = CUDA[version]
    tree = ast.parse((COMPILERS / "cuda.py").read_text(encoding="utf-8"))
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("cuda")}
    found |= {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cudaMemcpy")
    }
    known = set(listing["functions"]) | set(listing["constants"]) | set(listing["enums"])
    known |= {member for members in listing["enums"].values() for member in members}
    assert found <= known
    assert len(found) > 20, "the test looks at nothing"
    attributes = listing["enums"]["cudaDeviceAttr"]
    assert {f"cudaDevAttrComputeCapability{part}" for part in ("Major", "Minor")} <= set(attributes)
