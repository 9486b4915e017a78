"""The formats that are read from others, each with inputs of a real study, a way to spoil them, and who reads them."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from support.mutation import altered, replaced, strange, with_doubled_key

from mlflow_ngraph.execute import journal

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Format:
    """Something that is read."""

    spoil: Callable[[random.Random], bytes]
    read: Callable[[bytes], object]
    """Gives an input to the package; what it may raise is the package's own tree of errors."""


@dataclass(frozen=True)
class Corpus:
    """What a real study left behind."""

    study: Path
    """The directory of a study."""
    package: Path
    """One of its engines as a package."""
    archive: Path
    scratch: Path
    """Where inputs are laid down."""


def studies(corpus: Corpus) -> Format:
    """Study files: read, validated, planned, and written again."""
    from mlflow_ngraph.devices.registry import create
    from mlflow_ngraph.execute import plan
    from mlflow_ngraph.study import load, ready_made

    texts = [path.read_bytes() for path in (*ready_made().values(), corpus.study / "study.yaml")]
    documents = [yaml.safe_load(text) for text in texts]
    place = corpus.scratch / "fuzzed.yaml"

    def spoil(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return altered(rng.choice(texts), rng, texts)
        return yaml.safe_dump(replaced(rng.choice(documents), rng), sort_keys=False).encode("utf-8", "surrogatepass")

    def read(content: bytes) -> None:
        place.write_bytes(content)
        study = load(str(place))
        study.digest()
        study.to_yaml()
        plan.make(study, create(study.device))

    return Format(spoil, read)


def manifests(corpus: Corpus) -> Format:
    """Manifests of packages whose digest fits: read, compared with the files, and asked whether the engine serves here."""
    from mlflow_ngraph.engines import compatibility, package
    from mlflow_ngraph.engines.batches import inseparable
    from mlflow_ngraph.engines.manifest import DIGEST_FILE, FILE

    place = corpus.scratch / "package"
    shutil.copytree(corpus.package, place, dirs_exist_ok=True)
    text = (place / FILE).read_bytes()
    document = json.loads(text)

    def read(content: bytes) -> None:
        (place / FILE).write_bytes(content)
        (place / DIGEST_FILE).write_text(package.digest_line(hashlib.sha256(content).hexdigest()))
        opened = package.open_package(place)
        spec = opened.manifest.spec
        compatibility.incompatibility(opened.manifest)
        compatibility.rebuild(opened.manifest)
        opened.manifest.pulled("sqlite:///x", "m-1", None)
        inseparable(spec.inputs, spec.outputs, spec.mixes)
        [one.resolve(spec.probe_batch) for one in spec.inputs]

    return Format(_json(text, document), read)


def _json(text: bytes, document: Any) -> Callable[[random.Random], bytes]:
    def spoil(rng: random.Random) -> bytes:
        chance = rng.random()
        if chance < 0.3:
            return altered(text, rng)
        if chance < 0.4:
            return with_doubled_key(text.decode(), rng).encode("utf-8", "surrogatepass")
        return json.dumps(replaced(document, rng)).encode()

    return spoil


def journals(corpus: Corpus) -> Format:
    """Journals, half of them with checks that fit: all that reads one, as resuming, ``sync`` and ``recompute`` do."""
    from mlflow_ngraph.execute import disk_inventory, replay, study_directories, timing_history
    from mlflow_ngraph.tracking import files

    text = (corpus.study / journal.FILE_NAME).read_bytes()
    events = list(journal.read(corpus.study))
    home = corpus.scratch / "home"
    place = home / "studies" / corpus.study.name
    place.mkdir(parents=True, exist_ok=True)
    derived = corpus.scratch / "derived"
    derived.mkdir(exist_ok=True)
    key = corpus.study.name.split("-")[1]

    def read(content: bytes) -> None:
        (place / journal.FILE_NAME).write_bytes(content)
        known = timing_history.learn(home)
        known.building("lane", "onnxruntime", (1,), lambda flags: 1.0)
        known.preparing("other", (1,), timing_history.Duration())
        for lane in {str(event.get("lane")) for event in events}:
            known.call_s(lane, 2)
        study_directories.unrecorded(home)
        disk_inventory.stored_items(home)
        newest = study_directories.newest(home, key, "")
        if newest is not None:
            study_directories.end(newest)
        list(journal.read_backwards(place))
        # As a study that is recorded does.
        files.write(replay.load(place), place, derived, None, {}, {})
        journal.Journal(place).close()

    def spoil(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return altered(text, rng)
        return resealed(_changed(events, rng))

    return Format(spoil, read)


def _changed(events: list[journal.Event], rng: random.Random) -> list[Any]:
    """Events with one or a few of them changed, doubled, removed or moved."""
    changed = list(events)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(changed))
        way = rng.randrange(6)
        if way < 3:
            changed[place] = replaced(changed[place], rng)
        elif way == 3:
            changed.insert(rng.randrange(len(changed)), changed[place])
        elif way == 4 and len(changed) > 1:
            changed.pop(place)
        else:
            changed.insert(rng.randrange(len(changed)), changed.pop(place))
    return changed


def resealed(events: list[Any]) -> bytes:
    """A journal of these events whose checks fit: anybody can compute them."""
    written, check = b"", ""
    for event in events:
        said = {key: value for key, value in event.items() if key != "check"} if isinstance(event, dict) else event
        try:
            line, check = journal.line_of(said, check)
        except (TypeError, ValueError):
            continue
        written += line
    return written


def archives(corpus: Corpus) -> Format:
    """Archives of studies: checked, and unpacked where they are let in."""
    from mlflow_ngraph.engines.trust import EVERYTHING
    from mlflow_ngraph_archives import contents, importing

    whole = corpus.archive.read_bytes()
    with tarfile.open(corpus.archive) as tar:
        held = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    table = json.loads(held.pop(contents.FILE))
    name = next(path for path in held if path.endswith(journal.FILE_NAME))
    events = list(journal.parsed(held[name].splitlines(keepends=True), name))
    place, target = corpus.scratch / "fuzzed.tar", corpus.scratch / "unpacked"

    def spoil(rng: random.Random) -> bytes:
        chance, files, said = rng.random(), dict(held), table
        if chance < 0.3:
            return altered(whole, rng)
        if chance < 0.6:
            files[name] = resealed(_changed(events, rng))
            said = json.loads(json.dumps(table))
            digest = {"sha256": hashlib.sha256(files[name]).hexdigest(), "size": len(files[name])}
            said["studies"][0]["files"][journal.FILE_NAME] = digest
        else:
            said = replaced(table, rng)
        text = json.dumps(said)
        if chance > 0.9:
            text = with_doubled_key(text, rng)
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path, content in {contents.FILE: text.encode(), **files}.items():
                tar.addfile(contents.member(path, len(content)), io.BytesIO(content))
        return stream.getvalue()

    def read(content: bytes) -> None:
        place.write_bytes(content)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        importing.unpack(importing.check(place, EVERYTHING), target)

    return Format(spoil, read)


def tables(corpus: Corpus) -> Format:
    """Results tables on a server, beside one that is right: those that are let in are joined, compared, shown and judged."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    from mlflow_ngraph.analysis import cells, compare, findings, recommend, results, table_checks
    from mlflow_ngraph.analysis.listing import ListedRun
    from mlflow_ngraph.analysis.pivot import Pivot
    from mlflow_ngraph.cli import comparison
    from mlflow_ngraph.errors import UsageError
    from mlflow_ngraph.execute import replay
    from mlflow_ngraph.tables import results as made
    from mlflow_ngraph.tables import results_file
    from mlflow_ngraph.tracking.schema import Tag
    from mlflow_ngraph_changes import gate, history
    from mlflow_ngraph_changes.gate import Side

    def written(table: pa.Table) -> bytes:
        stream = io.BytesIO()
        pq.write_table(table, stream)
        return stream.getvalue()

    path = corpus.scratch / "results.parquet"
    results_file.write(made.from_record(replay.load(corpus.study)), path)
    whole, good = path.read_bytes(), pq.read_table(path)
    run = ListedRun("run", "experiment", "1", "", {Tag.STUDY_ID: corpus.study.name})

    def spoil(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return altered(whole, rng)
        table = good
        for _ in range(rng.choice((1, 1, 2, 4))):
            table = _other_column(table, rng)
        try:
            return written(table)
        except pa.ArrowException:  # what no file can hold
            return altered(whole, rng)

    others = ListedRun("other", "experiment", "1", "", {Tag.STUDY_ID: "other"})
    place = good.schema.get_field_index("study_id")
    names = pa.array(["other"] * len(good), good.schema.field(place).type)
    right = table_checks.parsed(written(good.set_column(place, good.schema.field(place), names)), others)

    def read(content: bytes) -> None:
        table = table_checks.parsed(content, run)
        alone, beside = (
            results.joined([("server", run, table)], None),
            results.joined([("server", others, right)], None),
        )
        for frame in (alone, results.joined([("server", run, table), ("server", others, right)], None)):
            pivot = Pivot.of(compare.compare(compare.latest(frame), metric="throughput"))
            for form in ("json", "csv", "latex", "markdown", "table"):
                comparison.text(pivot, form, intervals=True)
            recommend.recommend(frame, objective="throughput")
            findings.find(frame)
            list(cells.of_results(frame))
            with suppress(UsageError):
                history.history(frame, str(frame["cell"].iloc[0]))
        with suppress(UsageError):
            gate.gate(Side("it", alone), Side("a right one", beside))

    return Format(spoil, read)


def _other_column(table: pa.Table, rng: random.Random) -> pa.Table:
    """A table with a column taken away, doubled, exchanged, or with other values."""
    import pyarrow as pa

    place = rng.randrange(table.num_columns)
    name = table.column_names[place]
    way = rng.randrange(5)
    if way == 0:
        return table.remove_column(place)
    if way == 1:
        return table.append_column(name, table.column(rng.randrange(table.num_columns)))
    if way == 2:
        return table.set_column(place, name, table.column(rng.randrange(table.num_columns)))
    values = table.column(place).to_pylist()
    one = rng.randrange(len(values))
    values[one] = _other_value(name, values[one], rng)
    for kind in (table.schema.field(place).type, None, pa.string()):
        try:
            return table.set_column(place, name, pa.array(values if way == 3 else [values[-1]] * len(values), kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return table


def _other_value(column: str, value: Any, rng: random.Random) -> Any:
    """Something else for a cell: what nobody means, or what is nearly the same inside of a text that has a form."""
    if isinstance(value, str) and value.startswith("{") and rng.random() < 0.7:
        return json.dumps(replaced(json.loads(value), rng))
    if column in ("workload", "label") and rng.random() < 0.7:
        return rng.choice(("block:conv?width={0}", "block:attention?depth=2&width={0}", "timm:{0}", "{0}")).format(
            strange(rng)
        )
    return strange(rng)


FORMATS: dict[str, Callable[[Corpus], Format]] = {
    "study": studies,
    "manifest": manifests,
    "journal": journals,
    "archive": archives,
    "results": tables,
}
