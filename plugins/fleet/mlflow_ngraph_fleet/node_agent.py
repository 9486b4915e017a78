"""Program sent to a machine of a fleet: set up and start Ray, report its state, stop it and list survivors.

The file is sent through SSH as the standard input of any Python from 3.10 on, which then fills `CONFIG` and calls `main`. It needs the
standard library alone. It prints one line of JSON. What is secret in `CONFIG` is in no command line.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {}

MARK = "NGRAPH_FLEET"
"""Variable that every process of the engine and of its jobs has."""
STUDY = "mlflow_ngraph fleet job"
"""Part of a study's command line, by which jobs are recognised."""
_STORE_BYTES = 80_000_000
"""Size of Ray's object store, which this fleet does not use; by default it takes a share of the memory that is measured."""
QUIET = {
    # Nobody asks for tasks, objects or metrics here. What looks after them wakes up ten times a second, beside what is timed.
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_raylet_check_gc_period_milliseconds": "5000",
    "RAY_local_fs_monitor_interval_ms": "5000",
    "RAY_raylet_check_for_unexpected_worker_disconnect_interval_ms": "10000",
    # A worker beside the one that holds the job does nothing a hundred times a second.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_num_workers_soft_limit": "0",
    "RAY_kill_idle_workers_interval_ms": "5000",
    "RAY_object_manager_timer_freq_ms": "5000",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_report_worker_backlog_interval_ms": "10000",
    "RAY_core_worker_internal_heartbeat_ms": "10000",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_ray_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_emit_main_service_metrics": "0",
    "RAY_event_stats": "0",
    "RAY_debug_dump_period_milliseconds": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "METRICS_RECORD_INTERVAL_S": "60",
    # A study has limits of its own for memory, and says which cell exceeded them.
    "RAY_memory_monitor_refresh_ms": "0",
}
"""Variables that keep the engine from working while nothing is asked of it."""
WITHOUT = ("--disable-usage-stats", "--include-log-monitor=false")
"""Options that leave out a monitor, which looks for new lines of all logs ten times a second; jobs' logs are read without it."""
_ENDS_S, _DIES_S, _STARTS_S = 45.0, 10.0, 90.0
_LOCK_FOLDERS = ("/run/lock", "/var/tmp", "/tmp")  # noqa: S108 - where the lock of measurements may be


def main() -> None:
    """Execute a command, and print the result."""
    try:
        answer = {"up": up, "down": down, "status": status}[CONFIG["action"]]()
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        answer = {"problem": " ".join(str(error).split())[:500]}
    print(json.dumps(answer))  # noqa: T201 - the answer


def up() -> dict[str, Any]:
    """Start the engine unless it runs; make its environment the first time."""
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o700)
    _keep_secret(root / "token", CONFIG["token"])
    python = _engine_python(root)
    ray = Path(python).parent / "ray"
    if not ray.is_file():
        raise RuntimeError(f"there is no {ray}: install ray[default] beside {python}, or leave engine_python out")
    (root / "engine").write_text(python, encoding="utf-8")
    # A study that was killed together with its warden in the middle of a slice has left them standing still.
    _end(_ours(), signal.SIGCONT, 0.0)
    if _ours():
        return {"state": "was up already", "by": _keeper()}
    by = _start([str(ray), *_arguments()], _variables(root, ray.parent), root)
    if CONFIG["role"] == "head":
        _await_head(root)
    return {"state": "up", "by": by, **_versions(python)}


def down() -> dict[str, Any]:
    """Stop the engine and its processes, and report the survivors."""
    root = _root()
    if _has_systemd():
        subprocess.run(["systemctl", "--user", "disable", "--now", _unit()], capture_output=True, check=False)
        (_units() / _unit()).unlink(missing_ok=True)
        subprocess.run(["systemctl", "--user", "daemon-reload"], capture_output=True, check=False)
    before = len(_ours())
    _end(_ours(), signal.SIGCONT, 0.0)
    # What would start it again, then studies, which have something to write, then all others.
    for chosen, seconds in ((_is_keeper, 1.0), (_is_study, _ENDS_S), (lambda pid: True, _DIES_S)):
        _end([pid for pid in _ours() if chosen(pid)], signal.SIGTERM, seconds)
    _end(_ours(), signal.SIGKILL, _DIES_S)
    left = [f"{pid} {_command(pid)[:80]}" for pid in _ours()]
    (root / "token").unlink(missing_ok=True)
    (root / "engine").unlink(missing_ok=True)
    ports = [port for port in CONFIG["ports"] if _listens(port)]
    return {"ended": before, "left": left, "ports": ports, "host": socket.gethostname()}


def status() -> dict[str, Any]:
    """Report the running engine, the machine, and the study that measures on it."""
    root = _root()
    engine = root / "engine"
    python = engine.read_text(encoding="utf-8") if engine.is_file() else CONFIG["engine_python"]
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    return {
        "processes": len(_ours()),
        "by": _keeper(),
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "free_gb": round(shutil.disk_usage(Path.home()).free / 1e9, 1),
        "memory_gb": round(int(memory["MemAvailable"].split()[0]) / 1e6, 1),
        "time": time.time(),
        "systemd": _has_systemd(),
        "linger": Path("/var/lib/systemd/linger", _user()).exists(),
        "holder": _holder(),
        **(_versions(python) if python else {}),
        **_device(),
    }


def _root() -> Path:
    given = os.environ.get("XDG_DATA_HOME", "")
    return (
        Path(given or "~/.local/share").expanduser()
        / "mlflow-ngraph"
        / "fleet"
        / f"engine-{CONFIG['mark'].replace('/', '-')}"
    )


def _keep_secret(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _engine_python(root: Path) -> str:
    """The interpreter of the engine's own environment, which has nothing to do with that of any benchmark."""
    if CONFIG["engine_python"]:
        return str(CONFIG["engine_python"])
    place = root.parent / f"ray-{CONFIG['ray']}"
    python = place / "bin" / "python"
    if not (place / "made").is_file():
        shutil.rmtree(place, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                f"ray[default]=={CONFIG['ray']}",
            ],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr or done.stdout).strip().splitlines()
                raise RuntimeError(f"the engine's environment cannot be made: {said[-1] if said else command[:3]}")
        (place / "made").touch()
    return str(python)


def _arguments() -> list[str]:
    shared = [
        "start", "--block", *WITHOUT, f"--node-ip-address={CONFIG['host']}", "--num-cpus=1", "--num-gpus=0",
        f"--object-store-memory={_STORE_BYTES}", f"--resources={json.dumps(dict.fromkeys(CONFIG['devices'], 1))}",
    ]  # fmt: skip
    if CONFIG["role"] == "head":
        return [
            *shared, "--head", f"--port={CONFIG['port']}", "--dashboard-host=127.0.0.1",
            f"--dashboard-port={CONFIG['dashboard_port']}",
        ]  # fmt: skip
    return [*shared, f"--address={CONFIG['head']}"]


def _variables(root: Path, binaries: Path) -> dict[str, str]:
    """The environment of the engine, which its jobs have too."""
    return {
        **QUIET,
        **CONFIG["environment"],
        MARK: CONFIG["mark"],
        "PATH": f"{binaries}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(root / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Jobs are what is measured; by default they have the lowest priority but four.
        "RAY_worker_niceness": "0",
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "PYTHONUNBUFFERED": "1",
    }


def _start(command: list[str], variables: dict[str, str], root: Path) -> str:
    """Start the engine so that it is started again when it ends, and outlives this connection."""
    if _has_systemd():
        _units().mkdir(parents=True, exist_ok=True)
        lines = [
            "[Unit]", f"Description=mlflow-ngraph fleet {CONFIG['mark']}", "[Service]",
            *(f'Environment="{name}={_of_unit(value)}"' for name, value in variables.items()),
            "ExecStart=" + " ".join(f'"{_of_unit(word).replace("$", "$$")}"' for word in command),
            "Restart=always", "RestartSec=5", "TimeoutStopSec=60", "[Install]", "WantedBy=default.target", "",
        ]  # fmt: skip
        (_units() / _unit()).write_text("\n".join(lines), encoding="utf-8")
        for words in (["daemon-reload"], ["enable", "--now", _unit()]):
            subprocess.run(["systemctl", "--user", *words], capture_output=True, check=True)
        return "systemd"
    with (root / "log").open("ab") as log:
        subprocess.Popen(
            ["/bin/sh", "-c", 'while :; do "$@"; sleep 5; done', MARK, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    return "a loop"


def _of_unit(text: str) -> str:
    """Escape a quoted word for a unit file; in a command, dollars are doubled besides."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")


def _await_head(root: Path) -> None:
    """Wait until the job API answers, or the engine reports an error."""
    deadline = time.monotonic() + _STARTS_S
    address = f"http://127.0.0.1:{CONFIG['dashboard_port']}/api/version"
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {CONFIG['token']}"})
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - of this machine
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the engine did not start within {_STARTS_S:.0f} s; its log on this machine: {root / 'log'}")


def _versions(python: str) -> dict[str, str]:
    program = "import platform, importlib.metadata as m; print(platform.python_version(), m.version('ray'))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    words = done.stdout.split()
    return (
        {"engine_python": words[0], "ray": words[1]} if len(words) == 2 else {"engine_problem": f"no Ray for {python}"}
    )


def _device() -> dict[str, Any]:
    """Description of the machine by this package, where a study brought it."""
    home = Path(CONFIG["home"]).expanduser() if CONFIG["home"] else _root().parent.parent
    codes = sorted((home / "fleet" / "code").glob("code-*"), key=lambda path: path.stat().st_mtime)
    made = sorted(
        (home / "fleet" / "environments").glob("*/bin/python"), key=lambda path: path.parents[1].stat().st_mtime
    )
    python = CONFIG["python"] or (str(made[-1]) if made else "")
    if not codes or not python:
        return {}
    done = subprocess.run(
        [python, "-m", "mlflow_ngraph", "info", "devices", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(codes[-1])},
    )
    try:
        machine = json.loads(done.stdout)["machine"]
    except (ValueError, KeyError):
        return {}
    return {"fingerprint": machine["digest"], "cpu": machine["hardware"]["cpu"].get("model", "")}


def _holder() -> str:
    """Study that measures on this machine; empty if none does."""
    given = os.environ.get("NGRAPH_LOCK_DIR") or CONFIG["environment"].get("NGRAPH_LOCK_DIR")
    for folder in [given] if given else _LOCK_FOLDERS:
        path = Path(folder, "mlflow-ngraph.lock")
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                return f"study {told['study']!r} of {told['user']}, process {told['pid']}"
            except (OSError, ValueError, KeyError):
                return "somebody who does not say who it is"
        except OSError:
            continue
    return ""


def _ours() -> list[int]:
    """Processes of this machine's part of the fleet only."""
    engine = _root() / "engine"
    package = b""
    if engine.is_file():
        package = str(Path(engine.read_text(encoding="utf-8")).parent.parent).encode()
    here, own = Path("/proc/self/ns/net").readlink(), {os.getpid(), os.getppid()}
    return [
        pid
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        if pid not in own and _is_ours(pid, here, package)
    ]


def _is_ours(pid: int, network: Path, package: bytes) -> bool:
    process = Path("/proc", str(pid))
    try:
        if (
            process.stat().st_uid != os.getuid()
            or process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
        ):
            return False
        if f"{MARK}={CONFIG['mark']}".encode() in process.joinpath("environ").read_bytes().split(b"\0"):
            return True
        # Ray gives its processes titles, which overwrite what the kernel shows as their environment.
        return bool(
            package
            and (process / "ns" / "net").readlink() == network
            and package + b"/lib/" in process.joinpath("maps").read_bytes()
            and b"/ray/" in process.joinpath("maps").read_bytes()
        )
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _is_keeper(pid: int) -> bool:
    return "while :; do" in _command(pid)


def _is_study(pid: int) -> bool:
    return STUDY in _command(pid)


def _keeper() -> str:
    """Name of the supervisor that restarts the engine; empty without one."""
    if _has_systemd() and (_units() / _unit()).is_file():
        return "systemd"
    return "a loop" if any(map(_is_keeper, _ours())) else ""


def _end(pids: list[int], number: signal.Signals, seconds: float) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and set(pids) & set(_ours()):
        time.sleep(0.2)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _has_systemd() -> bool:
    if shutil.which("systemctl") is None:
        return False
    asked = subprocess.run(["systemctl", "--user", "show-environment"], capture_output=True, check=False)
    return asked.returncode == 0


def _units() -> Path:
    return Path("~/.config/systemd/user").expanduser()


def _unit() -> str:
    return f"mlflow-ngraph-{CONFIG['mark'].replace('/', '-')}.service"


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
