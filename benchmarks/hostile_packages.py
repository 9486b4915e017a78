"""Engine packages of somebody who means harm: does anything of them run before its user has consented?

    python benchmarks/hostile_packages.py [--count 300] [--seed 1] [--verbose]

A small real study gives packages of four compilers. A generator spoils copies of them: loaders, code, configurations and flavors of
an MLmodel, options and addresses among requirements, modules under well-known names, links and pipes, specifications that contradict the
manifest, probes that prove nothing, pickles, TorchScript and factories that write files; with the digests of all files where they
would be looked for. Each is a directory, in which whoever tries it stands, and an engine on a tracking server, and goes through every
door: verify, pull, load_model, mlflow.pyfunc.load_model of what was pulled, serve, deployments, save_model, sign, promote. Whatever of it
runs leaves a file. Exit code 1: one ran, one was taken that should be refused, or an answer was no single line; 2: fewer were tried.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from support import records
from support.answers import answer
from support.hostile import SHADOWS, Hostile, generated, seal
from support.server import QUIET

COMPILERS = ("identity", "torchscript", "onnxruntime", "openvino")
LIMIT_S = 240.0
TAKEN_OF_MLFLOW = ("pull", "pyfunc of what was pulled", "load_model of a server", "serve from a server")
"""Doors that write MLflow's files anew, or look at none."""
LISTED = tuple(f"engine/{name}" for name in SHADOWS[:3])
"""Files that an engine may have, as any of its compiler's, and that nothing may import."""


def main() -> int:
    """Try them, and print a line for each door and one for each that was answered otherwise than it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print every answer")
    records.add_option(parser)
    options = parser.parse_args()
    os.environ.update(QUIET)
    tried, refused, wrong, programs = Counter[str](), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory(prefix="ngraph-hostile-") as place:
        bench = _Bench(Path(place))
        rng = random.Random(options.seed)
        corpus = generated(rng, options.count, {"identity", "torchscript"})
        for number, (compiler, hostile) in enumerate(corpus):
            for door, call in bench.doors(compiler, hostile, number):
                found = answer(call, LIMIT_S)
                tried[door] += 1
                refused[door] += found.kind == "refused"
                problem = "" if found.kind == "refused" or _may_take(hostile, door) else f"{found.kind}: {found.said}"
                if found.kind == "defect":
                    problem = found.said
                if ran := bench.ran():
                    programs += 1
                    problem = f"it ran ({ran}), and was {found.kind}: {found.said}"
                wrong += bool(problem)
                if problem or options.verbose:
                    shown = f"{compiler}, {hostile.name}{', listed' if hostile.listed else ''}, {door}"
                    print(f"{'WRONG' if problem else found.kind} {shown}: {problem or found.said}"[:500], flush=True)
    for door, count in tried.items():
        print(f"{door}: {refused[door]} of {count} refused in one line")
    print(
        f"{len(corpus)} packages, {tried.total()} tries: {wrong} wrong; nothing ran" if not wrong else f"{wrong} wrong"
    )
    of = f"of {tried.total()} tries"
    records.keep(
        options,
        "hostile_packages",
        records.at_most("ran before consent", programs, 0, of, note=f"{len(corpus)} packages"),
        records.at_most("answered otherwise than they should be", wrong, 0, of),
    )
    return 2 if len(corpus) < options.count else int(bool(wrong))


def _may_take(hostile: Hostile, door: str) -> bool:
    if hostile.kind == "claim" or (hostile.listed and hostile.name in LISTED):
        return True
    if hostile.name == "a probe of nothing" and door in ("load_model", "load_model of a server", "save_model"):
        return True  # what proves an engine is looked at where it is proven
    if hostile.kind == "of MLflow":
        return door in TAKEN_OF_MLFLOW
    if hostile.kind == "file":  # nobody asks the server for it
        return door in (*TAKEN_OF_MLFLOW, "verify of a server", "sign", "promote")
    # To save, sign or promote a program runs nothing of it.
    return hostile.kind == "program" and door in ("save_model", "sign", "promote")


class _Bench:
    """A study of somebody else, its server, and a user without trust rules.

    Parameters
    ----------
    root : Path
        Where everything lies.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._uri = root, f"sqlite:///{root}/mlflow.db"
        self._tried, self._markers = root / "tried", root / "markers"
        self._markers.mkdir()
        os.environ.update(
            XDG_CACHE_HOME=str(root / "cache"), NGRAPH_HOME=str(root / "home"), MLFLOW_TRACKING_URI=self._uri
        )
        os.environ.pop("NGRAPH_TRUST", None)
        os.chdir(root)
        self._honest = _measured(root / "elsewhere", self._uri)
        self._key = root / "key"
        _write_key(self._key)

    def ran(self) -> str:
        """Names of the markers that were left; they are removed."""
        names = sorted(path.name for path in self._markers.iterdir())
        for name in names:
            (self._markers / name).unlink()
        return ", ".join(names)

    def doors(self, compiler: str, hostile: Hostile, number: int) -> Iterator[tuple[str, Callable[[], object]]]:
        """Every way to an engine, with a hostile package of that compiler behind it.

        Parameters
        ----------
        number : int
            Of the package; its marker has that name.
        """
        import mlflow
        from mlflow.deployments import get_deploy_client

        import mlflow_ngraph
        from mlflow_ngraph_serve import source

        os.chdir(self._root)
        shutil.rmtree(self._tried, ignore_errors=True)
        package, target = self._tried / "package", self._tried / "pulled"
        shutil.copytree(self._honest[compiler], package)
        hostile.harm(package, f"open('{self._markers}/{number}', 'w')")
        with contextlib.suppress(OSError):
            seal(package, listed=hostile.listed)
        model = self._logged(package, compiler)
        os.chdir(package)
        deployments = get_deploy_client("ngraph")

        def deploy() -> None:
            try:
                deployments.create_deployment("hostile", str(package))
            except mlflow.MlflowException as error:
                raise mlflow_ngraph.EngineError(str(error)) from None
            deployments.delete_deployment("hostile")

        yield "verify", lambda: _verb("verify", ".")
        yield "load_model", lambda: mlflow_ngraph.load_model(package).close()
        yield "serve", lambda: source.obtain(str(package))
        yield "deployments", deploy
        yield "save_model", lambda: mlflow_ngraph.save_model(package, self._tried / "saved")
        if hostile.kind in ("program", "contradiction") or number % 6 == 0:  # a pull that succeeds takes seconds
            yield "pull", lambda: mlflow_ngraph.pull(model, target)
        if target.is_dir():
            yield "pyfunc of what was pulled", lambda: mlflow.pyfunc.load_model(str(target))
        if number % 12 == 0:  # they do as the others, and take as long
            yield "load_model of a server", lambda: mlflow_ngraph.load_model(model).close()
            yield "serve from a server", lambda: source.obtain(model)
            yield "verify of a server", lambda: _verb("verify", model)
        yield "sign", lambda: _verb("sign", model, "--key", str(self._key))
        yield "promote", lambda: _verb("promote", model, "--name", "hostile", "--force")

    def _logged(self, package: Path, compiler: str) -> str:
        """Log the files as they are, with the tags that an honest engine would have."""
        from mlflow import MlflowClient

        from mlflow_ngraph.tracking.schema import Tag

        client = MlflowClient()
        created = client.create_logged_model("0", name=f"hostile-{compiler}")
        place = Path(created.artifact_location.removeprefix("file://"))
        shutil.copytree(package, place, symlinks=True, dirs_exist_ok=True, copy_function=_copied)
        digest = (package / "manifest.json.sha256").read_text().split()[0]
        client.set_logged_model_tags(created.model_id, {Tag.MANIFEST_SHA256: digest, Tag.COMPILER: compiler})
        client.finalize_logged_model(created.model_id, "READY")
        return f"models:/{created.model_id}"


def _copied(source: str, target: str) -> None:
    if Path(source).is_file():  # nobody waits for a pipe
        shutil.copyfile(source, target)


def _verb(*arguments: str) -> None:
    """Run a verb of engines. Raises `EngineError` with the last line it says where it ends otherwise than well."""
    from mlflow_ngraph import EngineError
    from mlflow_ngraph.cli.app import run

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run(["engine", *arguments])
    if "Traceback" in said.getvalue():
        raise RuntimeError(said.getvalue())
    if code:
        raise EngineError(" ".join(said.getvalue().split())[-1000:])


def _measured(home: Path, uri: str) -> dict[str, Path]:
    """Measure a tiny model with each compiler, in a home that is not the user's, and download the packages."""
    from mlflow import MlflowClient

    from mlflow_ngraph.runner import run_study
    from mlflow_ngraph.study import parse
    from mlflow_ngraph.tracking import download
    from mlflow_ngraph.tracking.schema import Tag

    study = parse(
        {
            "name": "honest",
            "workloads": ["block:mha?width=16"],
            "compilers": list(COMPILERS),
            "batch_sizes": [1],
            "repetitions": 4,
            "slice_repetitions": 2,
            "threads": 1,
            "warmup": {"window": 2, "max_seconds": 0.1},
            "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
        }
    )
    outcome = run_study(study, home=home, tracking_uri=uri, experiment="honest")
    if outcome.exit_code:
        raise SystemExit("the study did not end well")
    client, packages = MlflowClient(uri), {}
    for model in client.search_logged_models([client.get_experiment_by_name("honest").experiment_id]):
        packages[model.tags[Tag.COMPILER]] = home / model.model_id
        download.pull(download.of_model(model, uri), home / model.model_id)
    return packages


def _write_key(path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)


if __name__ == "__main__":
    sys.exit(main())
