"""Secrets of 30 kinds around a study, and every place that it writes to: is one of them outside of where it was put?

    python benchmarks/leaked_secrets.py

The secrets are in the environment, in logins of addresses there (the tracking server's among them), in the remote of the git
repository, in ``.netrc``, in keywords that a study names as ``{env: NAME}``, and in texts of a user's code, which prints and raises all
that it can read, when it is built, exported and called. A study is measured and recorded on a server of this script, read by every verb,
exported, imported, pulled, reported, and shown by the page. Then each file that was written is searched, packed and columnar ones by
their content, the terminals of all commands, the page's answers, and the command lines of all processes at 20 Hz. Exit code 1: a
secret was found, or a command ended otherwise than expected.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import requests
import yaml
from support import records
from support.server import QUIET, tracking_server
from support.small_study import SMALL
from support.telltale import PLANTED

HERE = Path(__file__).parent
VARIABLES = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    *(
        "AWS_SESSION_TOKEN",
        "AZURE_CLIENT_SECRET",
        "PGPASSWORD",
        "MYSQL_PWD",
        "PGPASS",
        "MY_PW",
        "WANDB_API_KEY",
        "GH_PAT",
    ),
    *("DEPLOY_KEY", "NETRC_AUTH", "VAULT_SECRET_ID", "KEYRING_PASSPHRASE"),
)
TEXTS = ("address", "signature", "header", "bearer", "pair")


def main() -> int:
    """Plant, run, and search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    records.add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ngraph-secrets-") as directory:
        place = Path(directory)
        (place / "server").mkdir()
        with tracking_server(place / "server", 1, "ngraph") as address:
            found = _Hunt(place, address).run()
    for line in found:
        print(line)
    leaks = records.at_most("leaks, and commands that ended otherwise than expected", len(found), 0)
    records.keep(options, "leaked_secrets", leaks)
    return int(bool(found))


class _Hunt:
    """One study with all that is known to be secret."""

    def __init__(self, place: Path, address: str) -> None:
        self.place, self.address = place, address
        secrets = {name: f"zqS-{name.lower()}-1" for name in (*VARIABLES, *TEXTS)}
        secrets |= {name: f"zqS-{name}-1" for name in ("uri", "proxy", "index", "remote", "netrc", "database")}
        secrets |= {"github": "ghp_zqS0123456789abcdef", "jwt": "eyJzqSzqSzqSzqS.eyJzqSzqSzqSzqS.zqS0123456789"}
        secrets |= {"pem": "-----BEGIN PRIVATE KEY-----\nzqSMIIEvQIBADANBg\n-----END PRIVATE KEY-----"}
        self.secrets = secrets
        self.user, self.written = place / "user", place / "written"
        self.user.mkdir()
        self.written.mkdir()
        (self.user / "planted.json").write_text(json.dumps(secrets))
        (self.user / ".netrc").write_text(f"machine db.lab login anna password {secrets['netrc']}\n")
        _git(self.user, f"https://git:{secrets['remote']}@git.lab/models.git")
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")},
            **QUIET,
            **{name: secrets[name] for name in VARIABLES if name != "MLFLOW_TRACKING_TOKEN"},
            "DATABASE": secrets["database"],
            "MLFLOW_TRACKING_URI": address.replace("://", f"://anna:{secrets['uri']}@"),
            "HTTPS_PROXY": f"http://anna:{secrets['proxy']}@proxy.lab:3128",
            "PIP_INDEX_URL": f"https://anna:{secrets['index']}@pip.lab/simple",
            "HOME": str(self.user),
            "XDG_CACHE_HOME": str(self.written / "cache"),
            "NGRAPH_HOME": str(self.written / "home"),
            "NGRAPH_LOCK_DIR": str(self.written),
            "TMPDIR": str(self.written),
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            PLANTED: str(self.user / "planted.json"),
        }
        self.said: dict[str, str] = {}
        self.commands: set[str] = set()

    def run(self) -> list[str]:
        """What was found, a line each."""
        self._write_study()
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(ended,))
        watching.start()
        try:
            wrong = list(self._use())
        finally:
            ended.set()
            watching.join()
        files = [
            path for folder in ("written", "server") for path in (self.place / folder).rglob("*") if path.is_file()
        ]
        places = [*self.said.items(), *(("command line", line) for line in self.commands)]
        places += [(str(path.relative_to(self.place)), text) for path in files for text in _texts(path)]
        kinds = {kind: secret.split("\n")[1] if "\n" in secret else secret for kind, secret in self.secrets.items()}
        if not any(" PGPASSWORD is … " in text for _, text in places):
            wrong.append("no log tells a secret that has been removed: nothing was tried")
        leaks = [f"{kind} is in {where}" for where, text in places for kind, secret in kinds.items() if secret in text]
        print(
            f"{len(kinds)} kinds of secrets, {len(files)} files, {len(self.said)} answers, {len(self.commands)} command lines: "
            f"{len(set(leaks))} leaks"
        )
        return sorted({*leaks, *wrong})

    def _write_study(self) -> None:
        kwargs = {"token": {"env": "HF_TOKEN"}, "database": {"env": "DATABASE"}}
        options = {"inputs": [{"shape": ["batch", 8]}], "kwargs": kwargs}
        names = ("printing", "unexportable", "failing")
        study = {
            "workloads": [{"ref": f"torch:support.telltale:{name}", "options": options} for name in names],
            "compilers": ["identity", "onnxruntime", "torchscript"],
            "batch_sizes": [1],
            **SMALL,
        }
        (self.user / "secrets.yaml").write_text(yaml.safe_dump(study))

    def _use(self) -> Iterator[str]:
        """Each verb; yields what ended otherwise than expected."""
        written = str(self.written)
        yield from self._ends(3, "benchmark", "secrets.yaml", "--experiment", "secrets")
        study = next((self.written / "home" / "studies").iterdir()).name
        for words in (
            ("compare", "--experiment", "secrets"),
            ("recommend", "--experiment", "secrets"),
            ("results", "findings", "--experiment", "secrets"),
            *(
                ("results", verb, "printing/onnxruntime/b1", "--experiment", "secrets")
                for verb in ("history", "explain")
            ),
            ("results", "report", "--experiment", "secrets", "--output", f"{written}/report"),
            ("engine", "list", "--experiment", "secrets"),
            (
                "engine",
                "pull",
                "--workload",
                "printing",
                "--experiment",
                "secrets",
                "--compilers",
                "onnxruntime",
                "--to",
                f"{written}/engine",
            ),
            ("study", "runs"),
            ("study", "export", study, "-o", f"{written}/study.tar"),
            ("study", "import", f"{written}/study.tar", "--home", f"{written}/other", "--offline"),
            ("info", "workloads", "torch:support.telltale:failing"),
            ("--debug", "compare", "--tracking-uri", f"postgresql://anna:{self.secrets['uri']}@127.0.0.1:9/x"),
        ):
            yield from self._ends(None, *words)
        for path in ("comparison", "findings"):
            answer = requests.get(f"{self.address}/ngraph/api/{path}", params={"experiment": "secrets"}, timeout=60)
            self.said[f"the page's {path}"] = answer.text

    def _ends(self, code: int | None, *words: str) -> Iterator[str]:
        """Run a verb and keep what it said; a code of None is any but that of a bad request to this script."""
        command = [sys.executable, "-m", "mlflow_ngraph", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self.env, cwd=self.user, check=False)
        self.said[" ".join(words)[:60]] = done.stdout + done.stderr
        print(f"{' '.join(words)[:80]}: {done.returncode}", flush=True)
        if code is not None and done.returncode != code:
            yield f"{words[0]} ended with {done.returncode}, not {code}: {done.stderr[-500:]}"

    def _watch(self, ended: threading.Event) -> None:
        """Command lines of all processes below this one, without what a person typed."""
        while not ended.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if "-m mlflow_ngraph" not in line:
                    self.commands.add(line)


def _git(folder: Path, remote: str) -> None:
    for words in (("init", "-q"), ("remote", "add", "origin", remote)):
        subprocess.run(["git", *words], cwd=folder, check=True)
    identity = ("-c", "user.name=anna", "-c", "user.email=anna@lab.example")
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "models"], cwd=folder, check=True)


def _texts(path: Path) -> Iterator[str]:
    """The content of a file, and of the files in it."""
    content = path.read_bytes()
    yield content.decode(errors="replace")
    if path.suffix == ".parquet":
        yield str(pq.read_table(path).to_pylist())
    elif path.suffix == ".arrow":
        with pa.memory_map(str(path)) as source:
            yield str(pa.ipc.open_file(source).read_all().to_pylist())
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name).decode(errors="replace") for name in archive.namelist())
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive, tempfile.TemporaryDirectory() as folder:
            archive.extractall(folder, filter="data")
            for inner in Path(folder).rglob("*"):
                if inner.is_file():
                    yield from _texts(inner)


if __name__ == "__main__":
    sys.exit(main())
