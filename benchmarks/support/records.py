"""Records of the figures that this project states about itself, a file for each topic in ``benchmarks/records``.

``benchmarks/render_records.py`` makes the tables of ``docs/verification.md`` of them. A benchmark with the option
``--record`` replaces the results of its own record.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from mlflow_ngraph import documents
from mlflow_ngraph.devices import fingerprint

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "records"
MACHINES = "machines"
"""The file that names machines by the keys that records use."""
VERSIONS = ("python", "mlflow", "torch", "onnxruntime", "openvino", "apache-tvm")


class Result(BaseModel):
    """A figure, and the bar that it has to reach."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    value: int | float | None
    """None where nothing was measured."""
    unit: str = ""
    """As it stands behind the value, such as ``ms`` or ``of 30``."""
    interval: tuple[int | float, int | float] | None = None
    bar: str = ""
    met: bool | None = None
    note: str = ""


class Record(BaseModel):
    """The figures of one command."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    what: str
    command: str
    machine: str | None
    busy: bool | None = None
    """None where nobody wrote down if others used the machine."""
    date: str | None
    commit: str | None
    """The tree that was measured, or the commit that wrote the figure down; None where unknown."""
    versions: dict[str, str] = {}
    note: str = ""
    """How these results came about; those of another run come without it."""
    results: list[Result]
    """Empty as long as nothing was recorded."""


def at_least(name: str, value: float, bar: float, unit: str = "", note: str = "", **shown: Any) -> Result:
    """A figure that must not be below its bar; `_result` has what else can be said."""
    said = "all" if unit == f"of {bar}" else _bar("at least", bar, unit)
    return _result(name, value, value >= bar, unit=unit, bar=said, note=note, **shown)


def at_most(name: str, value: float, bar: float, unit: str = "", note: str = "", **shown: Any) -> Result:
    """A figure that must not be above its bar; `_result` has what else can be said."""
    said = _bar("at most", bar, unit) if bar else "none"
    return _result(name, value, value <= bar, unit=unit, bar=said, note=note, **shown)


def _result(
    name: str,
    value: float,
    met: bool,
    *,
    digits: int | None = None,
    interval: tuple[float, float] | None = None,
    **told: str,
) -> Result:
    """A figure that is judged as it is, and shown with so many digits behind the point."""
    if digits is not None:
        value = round(value, digits)
        interval = (round(interval[0], digits), round(interval[1], digits)) if interval else None
    return Result(name=name, value=value, met=met, interval=interval, **told)


def _bar(word: str, bar: float, unit: str) -> str:
    return f"{word} {bar:g} {'' if unit.startswith('of ') else unit}".strip()


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark the option for `keep`."""
    told = "replace the record in benchmarks/records; say if others used the machine meanwhile"
    parser.add_argument("--record", choices=("quiet", "busy"), help=told)


def keep(options: argparse.Namespace, name: str, *results: Result) -> None:
    """Replace the results of a record, if ``--record`` was given and there are any."""
    if options.record is None or not results:
        return
    for topic, records in read().items():
        for place, record in enumerate(records):
            if record.id == name:
                records[place] = record.model_copy(update={**_circumstances(options), "results": list(results)})
                write(topic, records)
                print(f"recorded as {name} in {FOLDER / topic}.yaml; make results renders it")
                return
    raise SystemExit(f"no record {name} in {FOLDER}: write one with its 'what', and an empty list of results")


def read() -> dict[str, list[Record]]:
    """All records by topic."""
    paths = [path for path in sorted(FOLDER.glob("*.yaml")) if path.stem != MACHINES]
    return {path.stem: [Record(**content) for content in documents.from_yaml(path)] for path in paths}


def machines() -> dict[str, str]:
    """Descriptions of machines by key."""
    found: dict[str, str] = documents.from_yaml(FOLDER / f"{MACHINES}.yaml")
    return found


def write(topic: str, records: list[Record]) -> None:
    """Write the records of a topic."""
    _dump(topic, [_content(record) for record in records])


def _content(record: Record) -> dict[str, Any]:
    """All that a record says; what is unknown stands there, what does not apply is left out."""
    content = record.model_dump(exclude_defaults=True)
    content["results"] = [_Flow(result.model_dump(mode="json", exclude_defaults=True)) for result in record.results]
    return content


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """Command, machine, date, commit and versions of this run, and no note of another one."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    place = words.index("--record") if "--record" in words else len(words)
    script = Path(sys.argv[0]).name
    versions = fingerprint.versions()
    return {
        "command": shlex.join(["python", f"benchmarks/{script}", *words[:place], *words[place + 2 :]]),
        "machine": _machine(),
        "busy": options.record == "busy",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
        "versions": {name: versions[name] for name in VERSIONS if name in versions},
        "note": "",
    }


def _machine() -> str:
    """The key of this machine, which is added where it is new."""
    known, summary = machines(), fingerprint.summary(fingerprint.fingerprint())
    for key, text in known.items():
        if text == summary:
            return key
    key = re.sub(r"\W+", "-", summary.lower()).strip("-")
    _dump(MACHINES, {**known, key: summary})
    return key


def _commit() -> str | None:
    """The commit of this tree, with a mark if more than records was changed since."""
    commit = _git("rev-parse", "--short=8", "HEAD")
    outside = (":/", ":(top,exclude)benchmarks/records", ":(top,exclude)docs/verification.md")
    changed = commit and _git("status", "--porcelain", "--untracked-files=no", "--", *outside)
    return f"{commit}-dirty" if changed else commit or None


def _git(*words: str) -> str:
    """The answer of git; empty where there is no repository."""
    done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


class _Flow(dict[str, Any]):
    """Stands in one line."""


class _Dumper(yaml.SafeDumper):
    """Writes each result in one line."""


_Dumper.add_representer(
    _Flow, lambda dumper, content: dumper.represent_mapping("tag:yaml.org,2002:map", content.items(), flow_style=True)
)


def _dump(name: str, content: Any) -> None:
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118)
    (FOLDER / f"{name}.yaml").write_text(text, encoding="utf-8")
