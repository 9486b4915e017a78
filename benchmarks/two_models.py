"""Does one user ever get what is another one's, where both have a model of the same name?

``python benchmarks/two_models.py [--interleavings 200] [--seconds N]``

Two users measure ``torch:net:lin`` with other weights, once each, with ONNX Runtime. Then each interleaving begins with an
empty store, and they record, compare, pull and promote in a random order: into experiments of their own or into a common
one, with and without ``--all-experiments`` or a digest. Each answer is compared with the one of a user who is alone. Exit
code 1: an engine of the other was chosen, pulled or weighed, a figure is missing or another's, or a question was refused
that has one answer.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import records
from support.server import QUIET

REF = "torch:net:lin"
USERS = {"ann": 1.0, "bob": 2.0}
"""Weights of their models."""
ACTS = 6
"""Of an interleaving, those of both users together."""
_MODULE = """
import torch

def lin():
    model = torch.nn.Linear(16, 8)
    torch.nn.init.constant_(model.weight, {weight})
    return model
"""
_STUDY = {
    "name": "small", "workloads": [{"ref": REF, "options": {"inputs": [{"shape": ["batch", 16]}]}}],
    "compilers": ["identity", "onnxruntime"], "batch_sizes": [1, 4], "repetitions": 6, "slice_repetitions": 2,
    "threads": 1, "warmup": {"window": 2, "max_seconds": 0.1}, "limits": {"reload_seconds": 0},
    "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
}  # fmt: skip


@dataclass
class User:
    """One who works in a folder, with a home of their own."""

    name: str
    folder: Path
    uri: str = ""
    experiment: str = ""
    digest: str = ""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The variables and the working directory of the user."""
        own = {
            "LOGNAME": self.name,
            "NGRAPH_HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        before, here = {name: os.environ.get(name) for name in own}, Path.cwd()
        os.environ.update(own)
        os.chdir(self.folder)
        try:
            yield
        finally:
            os.chdir(here)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def ask(self, *words: str) -> tuple[int, Any, str]:
        """Exit code, document and errors of a verb."""
        from mlflow_ngraph.cli.app import run

        out, err = io.StringIO(), io.StringIO()
        with self.at_work(), redirect_stdout(out), redirect_stderr(err):
            code = run([*words, "--tracking-uri", self.uri, "--json"])
        return code, json.loads(out.getvalue()) if out.getvalue() else None, err.getvalue()

    def measure(self) -> None:
        """Measure the model without a server."""
        from mlflow_ngraph.runner import run_study
        from mlflow_ngraph.study import parse

        self.folder.mkdir()
        (self.folder / "net.py").write_text(_MODULE.format(weight=USERS[self.name]))
        with self.at_work():
            outcome = run_study(parse(_STUDY), home=self.folder / "home", offline=True)
        if outcome.exit_code:
            raise SystemExit(f"the study of {self.name} did not end well: {outcome.exit_code}")
        self.digest = outcome.record.workloads[next(iter(outcome.record.workloads))]["digest"]

    def record(self) -> None:
        """Record the study, or record it once more."""
        (study,) = (self.folder / "home" / "studies").iterdir()
        code, _, err = self.ask("study", "sync", str(study), "--experiment", self.experiment)
        if code:
            raise SystemExit(f"{self.name} cannot record: {err}")


@dataclass
class Lab:
    """A store that two users share, and what each of them is told when alone."""

    users: dict[str, User]
    alone: dict[str, dict[str, Any]] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)
    told: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def act(self, user: User, verb: str, rng: random.Random) -> None:
        """Ask one thing, and compare."""
        if verb == "record" or user.name not in self.there:
            user.record()
            self.there.add(user.name)
            return
        common = len({known.experiment for known in self.users.values()}) == 1
        everywhere = rng.random() < 0.4
        scope = ["--all-experiments"] if everywhere else []
        both = len(self.there) == 2 and (common or everywhere)
        answer = {"compare": compared, "pull": pulled, "promote": promoted}[verb]
        found, wanted = answer(user, scope, rng, both), self.alone[user.name][verb]
        self.told[f"{verb}, {'both there' if both else 'own'}"] += 1
        if found != wanted:
            self.wrong.append(f"{user.name} {verb} {scope} both={both}: {found!r} in place of {wanted!r}")


def compared(user: User, scope: list[str], rng: random.Random, both: bool) -> Any:
    """Figures of the user's own model, which stands in rows of its own where there is another one."""
    code, document, err = user.ask("compare", "--workloads", "lin", *scope)
    if code:
        return err
    rows = [(value["label"], value["compiler_label"], value["batch"], value["value"]) for value in document["values"]]
    if both and len(rows) != 8:
        return f"{len(rows)} rows of two models"
    label = f"lin ({user.digest[:8]})" if both else "lin"
    return sorted(row[1:] for row in rows if row[0] == label)


def pulled(user: User, scope: list[str], rng: random.Random, both: bool) -> Any:
    """The digest of the model whose engine comes; a name of two models has to be refused."""
    name, to = "lin", user.folder / f"engine-{rng.getrandbits(32):x}"
    if both:
        code, _, err = user.ask("engine", "pull", "--workloads", name, "--dry-run", "--accept-undecided", *scope)
        if code == 0 or "is 2 models" not in err or not all(known in err for known in (*USERS, user.digest[:8])):
            return f"code {code}, {err}"
        name = f"{REF}@{user.digest[: rng.choice([8, 12, 64])]}"
    words = ["engine", "pull", "--workloads", name, "--accept-undecided", *scope]
    if rng.random() < 0.7:
        code, document, err = user.ask(*words, "--dry-run")
        chosen = document and document["answer"]["chosen"]["model_id"]
    else:
        code, document, err = user.ask(*words, "--to", str(to))
        chosen = document and document["model_id"]
        if code == 0 and json.loads((to / "engine" / "spec.json").read_text())["digest"] != user.digest:
            return "the other's engine was pulled"
    return err if code else digest_of(user, chosen)


def promoted(user: User, scope: list[str], rng: random.Random, both: bool) -> Any:
    """The judgement of the user's engine of ONNX Runtime at batch 4."""
    code, document, err = user.ask(
        "engine", "promote", own_engine(user), "--name", f"of-{user.name}", "--dry-run", "--batch-size", "4"
    )
    if not document:
        return code, err
    # Behind the semicolon is a command with the user's folder in it.
    return document["state"], [text.partition(";")[0] for text in document["objections"]]


def own_engine(user: User) -> str:
    """The id of the engine that the user has recorded for batch 4."""
    return next(
        str(model.model_id)
        for model in engines(user)
        if model.tags["ngraph.compiler"] == "onnxruntime" and "4" in model.tags["ngraph.batch_sizes"].split(",")
        if digest_of(user, model.model_id) == user.digest
    )


def engines(user: User) -> list[Any]:
    """All engines of the store."""
    from mlflow import MlflowClient

    client = MlflowClient(user.uri)
    return list(client.search_logged_models([known.experiment_id for known in client.search_experiments()]))


def digest_of(user: User, model_id: str) -> str:
    """Digest of the model that an engine was compiled from, by its manifest."""
    from mlflow_ngraph.tracking import download

    return download.manifest(download.of_id(model_id, user.uri))[0].spec.digest


def fresh(place: Path, template: Path, measured: dict[str, User], seed: int) -> Lab:
    """An empty store, and copies of what was measured."""
    place.mkdir()
    shutil.copyfile(template, place / "mlflow.db")
    common = random.Random(seed).random() < 0.4
    users = {}
    for name, user in measured.items():
        folder = Path(shutil.copytree(user.folder, place / name, ignore=shutil.ignore_patterns("cache", "engine-*")))
        experiment = "common" if common else f"of-{name}"
        users[name] = User(name, folder, f"sqlite:///{place / 'mlflow.db'}", experiment, user.digest)
    return Lab(users)


def main() -> int:
    """Measure, then interleave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interleavings", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after so many")
    records.add_option(parser)
    options = parser.parse_args()
    os.environ.update(QUIET)
    from mlflow import MlflowClient

    began, wrong, told, done = time.monotonic(), list[str](), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="ngraph-two-models-") as directory:
        place = Path(directory)
        os.chdir(place)
        MlflowClient(f"sqlite:///{place / 'template.db'}").search_experiments()
        measured = {name: User(name, place / name) for name in USERS}
        for user in measured.values():
            user.measure()
        alone = {}
        for name in USERS:
            lab = fresh(place / f"alone-{name}", place / "template.db", measured, 0)
            user = lab.users[name]
            user.record()
            rng = random.Random(0)
            answers = {"compare": compared, "pull": pulled, "promote": promoted}
            alone[name] = {verb: answer(user, [], rng, False) for verb, answer in answers.items()}
        for seed in range(options.interleavings):
            if time.monotonic() - began > options.seconds:
                break
            lab = fresh(place / f"lab-{seed}", place / "template.db", measured, seed)
            lab.alone = alone
            rng = random.Random(seed)
            for _ in range(ACTS):
                name = rng.choice(list(USERS))
                lab.act(lab.users[name], rng.choice(["record", "compare", "pull", "promote"]), rng)
            wrong += [f"seed {seed}: {text}" for text in lab.wrong]
            told += lab.told
            done += 1
            shutil.rmtree(place / f"lab-{seed}")
            print(f"{done} interleavings, {len(wrong)} wrong", *lab.wrong, file=sys.stderr, sep="\n  ", flush=True)
    print(json.dumps({"interleavings": done, "answers": dict(sorted(told.items())), "wrong": wrong}, indent=2))
    fine = done - len({text.partition(":")[0] for text in wrong})
    about = "interleavings without a wrong pull or a merged row"
    records.keep(
        options,
        "two_models",
        records.at_least(about, fine, done, f"of {done}"),
        records.at_least("interleavings that were run", done, options.interleavings, f"of {options.interleavings}"),
    )
    return 1 if wrong or not done else 0


if __name__ == "__main__":
    raise SystemExit(main())
