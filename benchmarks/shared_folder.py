"""A folder that everybody may write to, in which somebody has put links: is any file outside of it touched?

    python benchmarks/shared_folder.py

A small study is recorded, and another user plants links to a victim's folder wherever `pull`, `prune`, `report` and `export` write or
remove. Then the victim uses these verbs, as root and, where this script is run as root, as an ordinary user. Exit code 1: a file of the victim was
changed, removed or added.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

from support import records, small_study
from support.answers import answer
from support.server import QUIET

ATTACKER, ORDINARY = 64001, 64002
Verb = Callable[[Path], object]
"""A use of the shared folder."""
Planted = Callable[[Path, Path], Verb]
"""Prepares a shared folder for a verb, with the folder of a victim."""


def main() -> int:
    """Plant and use, and print what became of the victim's files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    records.add_option(parser)
    options = parser.parse_args()
    os.environ.update(QUIET)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="ngraph-shared-") as place:
        root = Path(place)
        root.chmod(0o755)
        os.chdir(root)
        uri = f"sqlite:///{root}/mlflow.db"
        outcome = small_study.measured(root / "device", uri)
        for user in (0, ORDINARY) if os.geteuid() == 0 else (os.geteuid(),):
            for name, act in acts(uri, outcome.directory):
                said, touched = used(root, user, act)
                wrong.append(touched)
                print(f"{'WRONG' if touched else 'ok':5} uid {user}: {name}: {said[:150]}", flush=True)
    count = len(wrong)
    good = records.at_least("acts that touched no file of the victim's", count - sum(wrong), count, f"of {count}")
    records.keep(options, "shared_folder", good)
    return int(any(wrong))


def acts(uri: str, study: Path) -> Iterator[tuple[str, Planted]]:
    """Names of acts, with what plants the links for each and returns the verb to use."""
    from mlflow import MlflowClient

    from mlflow_ngraph.release.pulling import pull_engine
    from mlflow_ngraph_archives.export import export
    from mlflow_ngraph_engines import pruning
    from mlflow_ngraph_report import files as report

    client = MlflowClient(uri)
    models = client.search_logged_models([client.get_experiment_by_name(small_study.EXPERIMENT).experiment_id])
    model = next(model for model in models if model.tags.get("ngraph.compiler") == "onnxruntime")
    drawn = SimpleNamespace(html=lambda: "page", files=lambda: {"report.html": b"page", "figures/f1.svg": b"svg"})

    pull_engine(
        f"models:/{model.model_id}", study / "pulled", tracking_uri=uri
    )  # who is no longer root imports nothing

    def pulled(shared: Path) -> object:
        return pull_engine(f"models:/{model.model_id}", shared / "eng", tracking_uri=uri, home=shared.parent / "home")

    def pruned(shared: Path) -> None:
        location = f"file://{shared}/{model.model_id}/artifacts"
        moved = SimpleNamespace(tags=model.tags, artifact_location=location)
        engine = SimpleNamespace(tracking_uri=uri, model=moved, model_id=model.model_id, registered=())
        pruning.remove(engine)  # type: ignore[arg-type]

    yield "pull, staging is a link", planted({".eng.pull": ""}, pulled)
    yield "pull, package is a link", planted({".eng.pull/package": ""}, pulled)
    yield "pull, parts are a link", planted({".eng.pull/package/.parts": ""}, pulled)
    yield "pull, engine is a link", planted({".eng.pull/package/engine": "docs"}, pulled)
    yield "pull, lock is a link", planted({".eng.pull/lock": "lock"}, pulled)
    yield "pull, target is a link", planted({"eng": ""}, pulled)
    yield "prune, place is a link", planted({f"{model.model_id}": ""}, pruned)
    yield "prune, artifacts are a link", planted({f"{model.model_id}/artifacts": ""}, pruned)
    yield "prune, a link inside", planted({f"{model.model_id}/artifacts/engine": "docs"}, pruned)
    written = lambda shared: report.write(drawn, shared / "report")  # type: ignore[arg-type] # noqa: E731
    yield "report, page is a link", planted({"report/report.html": "docs/thesis.txt"}, written)
    yield "report, figures are a link", planted({"report/figures": "docs"}, written)
    exported = lambda shared: export([study], shared / "study.tar")  # noqa: E731
    yield "export, archive is a link", planted({"study.tar": "docs/thesis.txt"}, exported)
    yield "export, its beginning is a link", planted({".study.tar.partial": "docs/thesis.txt"}, exported)


def planted(links: dict[str, str], verb: Verb) -> Planted:
    """Put links of the attacker's to files of the victim into the shared folder, then return the verb."""

    def plant(shared: Path, victim: Path) -> Verb:
        for name, target in links.items():
            (shared / name).parent.mkdir(parents=True, exist_ok=True)
            (shared / name).symlink_to(victim / target)
        for path in shared.rglob("*"):
            if os.geteuid() == 0:
                os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(0o777)
        return verb

    return plant


def used(root: Path, user: int, act: Planted) -> tuple[str, bool]:
    """What a verb said, and whether a file of the victim is another one."""
    shared, victim, home = (root / name for name in ("shared", "victim", "home"))
    for folder in (shared, victim, home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    shared.chmod(0o777 | stat.S_ISVTX)
    (victim / "docs").mkdir()
    (victim / "docs" / "thesis.txt").write_text("precious")
    (victim / "id_rsa").write_text("key")
    for path in (victim, home, *victim.rglob("*")):
        os.chown(path, user, user)
    before = listed(victim)
    verb = act(shared, victim)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        if user != os.geteuid():
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        os.environ.update(HOME=str(home), XDG_CACHE_HOME=str(home), NGRAPH_HOME=str(home))
        found = answer(lambda: verb(shared), 120)
        os.write(write, f"{found.kind}: {found.said.replace(str(root), '')}".encode()[:4000])
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as said:
        return said.read(), listed(victim) != before


def listed(folder: Path) -> dict[str, bytes]:
    """Files of a folder with their content."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


if __name__ == "__main__":
    sys.exit(main())
