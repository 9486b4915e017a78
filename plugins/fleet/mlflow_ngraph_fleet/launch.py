"""Standalone script of a job: find or make its Python environment, drop the engine's variables, exec the study.

This file goes to the device by itself and runs with any Python there from 3.10 on; it needs the standard library alone. Each step
replaces the process (exec), so that whoever ends the job ends the study, and nothing is left behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

MARK = "@ngraph "
JOB = "job.json"
_STRAY = ("RAY_", "SLURM_", "SBATCH_", "OMP_NUM_THREADS")
"""Variables that engines give their jobs: Ray's number of threads would cripple every runtime, and others carry tokens."""
_KEPT = 20
"""Environments and versions of the code that stay; those that were used last."""


def main() -> NoReturn:
    """Replace this process by the study that the directory describes."""
    here = Path.cwd()
    job: dict[str, Any] = json.loads((here / JOB).read_text(encoding="utf-8"))
    parts = _parts(job["parts"], here)
    own = _environment(job)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            _fail(
                f"the engine starts its jobs with niceness {nice}, which would be measured: start it with 0, as fleet up does"
            )
    root = Path(job["home"]).expanduser() if job["home"] else _data_directory()
    fleet = root / "fleet"
    fleet.mkdir(parents=True, exist_ok=True)
    code = parts[job["code"]]
    packages = _kept(fleet / "code", job["code"], lambda target: _unpack(code.glob("*.whl"), target))
    wheel = next(code.glob("mlflow_ngraph-*.whl"))
    python = job["python"] or str(_made(fleet / "environments", job, wheel) / "bin" / "python")
    for name in job["models"]:
        source = _kept(
            fleet / "models", name, lambda target, name=name: shutil.copytree(parts[name], target, dirs_exist_ok=True)
        )
        _laid_out(source, here)
    own["PYTHONPATH"] = str(packages)
    own["PYTHONUNBUFFERED"] = "1"
    own["NGRAPH_HOME"] = str(root)
    sys.stdout.flush()
    try:
        os.execvpe(python, [python, "-m", "mlflow_ngraph", "fleet", "job"], own)  # noqa: S606 - no shell on purpose
    except OSError as error:
        _fail(f"cannot start {python}: {error.strerror}")


def say(event: str, **fields: Any) -> None:
    """Send an event to the client."""
    print(MARK + json.dumps({"event": event, **fields}), flush=True)  # noqa: T201 - the log is how a job speaks


def _fail(reason: str) -> NoReturn:
    say("ended", code=2, reason=reason)
    raise SystemExit(2)


def _parts(names: list[str], here: Path) -> dict[str, Path]:
    """Folders of the parts that the engine has brought."""
    folders = [here, *(Path(text) for text in os.environ.get("PYTHONPATH", "").split(os.pathsep) if text)]
    places = {}
    for name in names:
        candidates = [folder if folder.name == name else folder / name for folder in folders]
        place = next((path for path in candidates if path.is_dir()), None)
        if place is None:
            _fail(f"the engine did not bring {name}")
        places[name] = place
    return places


def _environment(job: dict[str, Any]) -> dict[str, str]:
    """The variables of the study: those of the machine without the engine's, then those of the device."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_STRAY)}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        own.pop(name, None)
    if not own.get("CUDA_VISIBLE_DEVICES", "0"):
        del own["CUDA_VISIBLE_DEVICES"]  # hides the GPU from jobs that did not ask the engine for one
    own.update(job["env"])
    if job["env_file"]:
        own.update(_secrets(Path(job["env_file"]).expanduser()))
    return own


def _secrets(path: Path) -> dict[str, str]:
    """Secrets from a file that only its owner can read."""
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            _fail(f"others can read {path}: chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        _fail(f"cannot read {path}: {error.strerror}")
    pairs = (line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {name.strip().removeprefix("export "): value.strip().strip("'\"") for name, _, value in pairs}


def _data_directory() -> Path:
    given = os.environ.get("XDG_DATA_HOME", "")
    return Path(given or "~/.local/share").expanduser() / "mlflow-ngraph"


def _kept(folder: Path, name: str, fill: Any) -> Path:
    """The directory of this name, made once; concurrent callers wait for it."""
    target = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            making = folder / f".{name}.{os.getpid()}"
            shutil.rmtree(making, ignore_errors=True)
            fill(making)
            making.rename(target)
        os.utime(target)
    _tidy(folder)
    return target


def _tidy(folder: Path) -> None:
    """Remove the folders that were not used for longest."""
    kept = sorted(
        (path for path in folder.iterdir() if path.name[:1] != "." and path.is_dir()), key=_used, reverse=True
    )
    for path in kept[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
        (folder / f".{path.name}.lock").unlink(missing_ok=True)


def _used(path: Path) -> float:
    return path.stat().st_mtime


def _unpack(wheels: Iterable[Path], target: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)


def _made(folder: Path, job: dict[str, Any], wheel: Path) -> Path:
    """The environment with the compilers. Its name is a digest of its requirements; code alone changes nothing."""
    interpreter = shutil.which(job["interpreter"])
    if interpreter is None:
        _fail(
            f"there is no {job['interpreter']} to make an environment with: name another interpreter, or one that is there"
        )
    version = subprocess.run([interpreter, "-VV"], capture_output=True, text=True, check=False).stdout
    with zipfile.ZipFile(wheel) as archive:
        about = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needs = [
            line
            for line in archive.read(about).decode().splitlines()
            if line.startswith(("Requires-", "Provides-Extra"))
        ]
    asked = [*job["requirements"], *job["pip_options"]]
    key = hashlib.sha256("\n".join([interpreter, version, *needs, *asked]).encode()).hexdigest()[:16]
    place = folder / key
    folder.mkdir(parents=True, exist_ok=True)
    # Not `_kept`: environments hold their own path, and cannot be moved.
    with (folder / f".{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").is_file():
            _make(place, interpreter, job, wheel)
        os.utime(place)
    _tidy(folder)
    return place


def _make(place: Path, interpreter: str, job: dict[str, Any], wheel: Path) -> None:
    started = time.monotonic()
    say("environment", doing="making the environment, once for this device", requirements=job["requirements"])
    shutil.rmtree(place, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        # pip wants the name that a wheel was built with.
        local = shutil.copy(wheel, scratch)
        wanted = [_requirement(text, Path(local)) for text in job["requirements"]]
        for command in (
            [
                interpreter,
                "-m",
                "venv",
                *(["--system-site-packages"] if job["system_site_packages"] else []),
                str(place),
            ],
            [
                str(place / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *job["pip_options"],
                *wanted,
            ],
        ):
            made = subprocess.run(
                command, stdout=sys.stdout, stderr=subprocess.STDOUT, env=_environment(job), check=False
            )
            if made.returncode:
                _fail(
                    f"the environment cannot be made: {Path(command[0]).name} {' '.join(command[1:4])} ended with {made.returncode}; see its log"
                )
    (place / "made").write_text(json.dumps(job["requirements"]), encoding="utf-8")
    say("environment", doing="environment made", seconds=round(time.monotonic() - started, 1))


def _requirement(text: str, wheel: Path) -> str:
    """A requirement as pip takes it; this package is the one that travelled."""
    name, bracket, extras = text.partition("[")
    return f"{name}{bracket}{extras} @ {wheel.as_uri()}" if name.strip() == "mlflow-ngraph" else text


def _laid_out(source: Path, here: Path) -> None:
    """Links to models, where the study looks for them."""
    for file in source.rglob("*"):
        if file.is_file():
            link = here / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(file)


if __name__ == "__main__":
    main()
