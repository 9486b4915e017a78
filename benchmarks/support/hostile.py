"""Engine packages of somebody who means harm: each plants code in a place from which something might run it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

Kind = Literal["of MLflow", "file", "program", "contradiction", "claim"]
Harm = Callable[[Path, str], None]
"""Spoils a package so that it runs a line of Python."""

SHADOWS = (
    *("numpy.py", "openvino.py", "onnxruntime.py", "torch.py", "yaml.py", "pydantic.py", "sitecustomize.py"),
    *("usercustomize.py", "mlflow_ngraph/__init__.py", "code/evil.py", "evil.py", "evil.pth", "conftest.py", "evil.so"),
)  # fmt: skip
"""Names under which code might be imported from a package, its engine, or the directory that somebody stands in."""


@dataclass(frozen=True)
class Hostile:
    """A way to spoil a package."""

    kind: Kind
    """``of MLflow``: a pull may take the engine, and has to leave the rest; ``program``: it is refused without consent; ``claim``: it
    may be taken."""
    name: str
    harm: Harm
    listed: bool
    """The manifest has the digests of all files."""


def generated(rng: random.Random, count: int, programs: set[str]) -> list[tuple[str, Hostile]]:
    """So many compilers with a way to spoil their package.

    Parameters
    ----------
    programs : set[str]
        Compilers whose engines are programs, beside ``onnxruntime`` and ``openvino``.
    """
    data = ("onnxruntime", "openvino")
    every = [
        (compiler, Hostile(kind, name, harm, listed))
        for kind, name, harm in (*_of_mlflow(), *_files(), *_contradictions())
        for compiler in data
        for listed in (True, False)
    ]
    every += [
        (name, Hostile("program", what, harm, True)) for name in sorted(programs) for what, harm in _programs(name)
    ]
    kept = [one for one in every if one[1].kind == "program"]
    others = [one for one in every if one[1].kind != "program"]
    return [*kept, *rng.sample(others, min(len(others), count - len(kept)))]


def seal(package: Path, *, listed: bool) -> None:
    """Let the manifest say what the package has, and its digest say what the manifest is."""
    path = package / "manifest.json"
    document = json.loads(path.read_text())
    files = {
        name: hashlib.sha256((package / name).read_bytes()).hexdigest()
        for name in sorted(file.relative_to(package).as_posix() for file in package.rglob("*") if file.is_file())
        if not name.startswith("manifest.json")
    }
    document["files"] = {name: digest for name, digest in files.items() if listed or name in document["files"]}
    document["size_bytes"] = sum(
        (package / name).stat().st_size for name in document["files"] if name.startswith("engine/")
    )
    path.write_text(json.dumps(document))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (package / "manifest.json.sha256").write_text(f"{digest}  manifest.json\n")


def _write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def _swapped(name: str, old: str, new: str) -> Harm:
    def apply(package: Path, line: str) -> None:
        text = (package / name).read_text()
        assert old in text, (name, old)
        _write(package / name, text.replace(old, new, 1))
        _write(package / "code" / "evil.py", line)

    return apply


def _of_mlflow() -> Iterator[tuple[Kind, str, Harm]]:
    """What MLflow loads, imports or installs before anything compares a digest."""
    loader = "loader_module: mlflow_ngraph.release.flavor"
    for name, new in (
        ("a loader of its own", "loader_module: evil\n    code: code"),
        ("a loader in its code", "loader_module: code.evil"),
        ("code beside the loader", f"{loader}\n    code: code"),
        ("data for the loader", f"{loader}\n    data: code"),
        ("a pickled model", f"{loader}\n    python_model: code/evil.py"),
        ("code of a model", f"{loader}\n    model_code_path: code/evil.py"),
        ("a config that consents", f"{loader}\n    config: {{run: true}}"),
        (
            "another flavor",
            f"{loader}\n  sklearn:\n    pickled_model: code/evil.py\n    serialization_format: cloudpickle",
        ),
    ):
        yield "of MLflow", name, _swapped("MLmodel", loader, new)
    for key in (
        "auth_policy: {user: x}",
        "saved_input_example_info: {artifact_path: code/evil.py}",
        "env_vars: [HOME]",
    ):
        yield "of MLflow", f"MLmodel with {key}", _swapped("MLmodel", "flavors:", f"{key}\nflavors:")
    for line in (
        *(
            "--index-url http://127.0.0.1:9/",
            "--extra-index-url http://127.0.0.1:9/",
            "-e ./code",
            "-r ../evil.txt",
            "./code",
        ),
        *(
            "evil @ file:///tmp/evil",
            "git+https://127.0.0.1:9/evil",
            "--find-links .",
            "--trusted-host 127.0.0.1",
            "evil-package",
        ),
    ):
        yield "of MLflow", f"the requirement {line}", _swapped("requirements.txt", "mlflow==", f"{line}\nmlflow==")
        yield "of MLflow", f"{line} for conda", _swapped("conda.yaml", "  - mlflow==", f"  - {line!r}\n  - mlflow==")
    yield "of MLflow", "another channel", _swapped("conda.yaml", "conda-forge", "http://127.0.0.1:9/")
    yield (
        "of MLflow",
        "variables of conda",
        _swapped("conda.yaml", "name:", "variables: {LD_PRELOAD: ./evil.so}\nname:"),
    )
    yield "of MLflow", "another build tool", _swapped("python_env.yaml", "- wheel", "- ./code")
    yield "of MLflow", "other requirements", _swapped("python_env.yaml", "-r requirements.txt", "-r code/evil.txt")


def _with_file(name: str, content: str | None = None) -> Harm:
    """A file with some content, or with the line of code."""
    return lambda package, line: _write(package / name, line if content is None else content)


def _with_special(name: str, make: Callable[[Path], object]) -> Harm:
    return lambda package, line: _special(package / name, make)


def _files() -> Iterator[tuple[Kind, str, Harm]]:
    """Code that lies where an import might find it, and files that are none."""
    for name in SHADOWS:
        yield "file", name, _with_file(name)
    for name in SHADOWS[:3]:
        yield "file", f"engine/{name}", _with_file(f"engine/{name}")
    yield "file", "a wheel of its own", lambda package, line: _write(package / "wheels/evil-1-py3-none-any.whl", line)
    for name in ("registered_model_meta", "README.md", "engine/more"):
        yield "file", f"{name} as a link", _with_special(name, lambda place: place.symlink_to("/etc/passwd"))
        yield "file", f"{name} as a pipe", _with_special(name, os.mkfifo)


def _special(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


_CLAIMS = ("other batch sizes", "another workload")
"""What an engine can say of itself without a contradiction; the first shows when it is tried."""


def _contradictions() -> Iterator[tuple[Kind, str, Harm]]:
    """Packages of which one part says another thing than the other, or that prove nothing."""
    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        "another compiler": lambda spec: spec.update(compiler="identity"),
        "a compiler that is a module": lambda spec: spec.update(compiler="os:system"),
        "other batch sizes": lambda spec: spec.update(batch_sizes=[7]),
        "99999 batch sizes": lambda spec: spec.update(batch_sizes=list(range(1, 100_000))),
        "a batch size twice": lambda spec: spec.update(batch_sizes=[1, 1]),
        "another mode": lambda spec: spec["target"].update(mode="evil"),
        "less than no threads": lambda spec: spec["target"].update(threads=-5),
        "no outputs": lambda spec: spec.update(outputs=[]),
        "outputs more": lambda spec: spec.update(outputs=spec["outputs"] * 2),
        "another workload": lambda spec: spec.update(workload="torch:os:system?command=true"),
        "a requirement that is an option": lambda spec: spec["packages"].update({"--index-url": "1"}),
        "a requirement that is an address": lambda spec: spec["packages"].update(evil="1 @ http://127.0.0.1:9/"),
    }
    for name, change in edits.items():
        for both in (True, False):
            kind: Kind = "claim" if both and name in _CLAIMS else "contradiction"
            yield kind, f"{name}{', and in the engine' if both else ''}", _of_spec(change, both)
    for name, content in (("an empty specification", "{}"), ("no specification", "")):
        yield "contradiction", name, _with_file("engine/spec.json", content)
    yield "contradiction", "a probe of nothing", _nothing


def _of_spec(change: Callable[[dict[str, Any]], object], both: bool) -> Harm:
    def apply(package: Path, line: str) -> None:
        document = json.loads((package / "manifest.json").read_text())
        change(document["spec"])
        _write(package / "manifest.json", json.dumps(document))
        if both:
            _write(package / "engine/spec.json", json.dumps(document["spec"]))

    return apply


def _nothing(package: Path, line: str) -> None:
    """Outputs that are no numbers are equal to whatever is computed of inputs that are none."""
    with np.load(package / "engine/probe.npz") as content:
        arrays = {
            name: np.full_like(content[name], np.nan) for name in content.files if not name.startswith("rounding")
        }
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    _write(package / "engine/probe.npz", stream.getvalue())


def _programs(compiler: str) -> Iterator[tuple[str, Harm]]:
    """Engines that are what they say, and run the line as soon as they are loaded or called."""
    yield "honest", lambda package, line: None
    if compiler == "identity":
        for target in ("subprocess:getoutput", "os:system"):
            yield f"the factory {target}", _factory(target)
        yield (
            "weights that are a pickle",
            lambda package, line: _write(package / "engine/model/weights.safetensors", _pickled(line)),
        )
    if compiler == "torchscript":
        yield "a program that writes", _scripted
        yield (
            "a pickle for a program",
            lambda package, line: _write(next((package / "engine").glob("*.pt")), _pickled(line)),
        )


def _factory(target: str) -> Harm:
    def apply(package: Path, line: str) -> None:
        path = package / "engine/model/materials.json"
        document = json.loads(path.read_text())
        shell = f"python3 -c {line!r}"
        document["ref"] = {"scheme": "torch", "target": target, "options": {"kwargs": {"cmd": shell, "command": shell}}}
        _write(path, json.dumps(document))

    return apply


def _pickled(line: str) -> bytes:
    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, (line,)

    return pickle.dumps(Harmful())


def _scripted(package: Path, line: str) -> None:
    """TorchScript itself can write files."""
    import torch

    marker = line.split("'")[1]
    program = torch.jit.script(torch.nn.Module())
    program.define(f"def forward(self, x: Tensor) -> Tensor:\n    torch.save(x, {marker!r})\n    return x\n")
    stream = io.BytesIO()
    torch.jit.save(program, stream)
    _write(next((package / "engine").glob("*.pt")), stream.getvalue())
