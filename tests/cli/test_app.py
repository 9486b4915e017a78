"""The root: help, errors in one line, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mlflow_ngraph import __version__
from mlflow_ngraph.cli import app
from mlflow_ngraph.cli.lazy import Verbs

ROOT = Path(__file__).parents[2]
BROKEN_ONNX = "this is no protobuf"

WRONG = [
    # (arguments, what the line says)
    (["bencmark"], "no verb 'bencmark': did you mean 'benchmark'?"),
    (["--colour"], "No such option '--colour'"),
    (["benchmark", "--batchsizes", "1"], "No such option '--batchsizes'"),
    (["benchmark", "smok"], "no study 'smok': did you mean 'smoke'?"),
    (["benchmark", "none.yaml"], "no study 'none.yaml'"),
    (["benchmark", "{tmp}/list.yaml"], "expected a mapping of keys, found list"),
    (["benchmark", "{tmp}/tabs.yaml"], "not readable as YAML"),
    (
        ["benchmark", "{tmp}/model.onnx"],
        "model.onnx: a model and no study: write --workloads onnx:{tmp}/model.onnx",
    ),
    (["benchmark", "{tmp}/unknown-key.yaml"], "batchsizes: unknown key: did you mean 'batch_sizes'?"),
    (["benchmark", "{tmp}/nested-key.yaml"], "warmup.windows: unknown key: did you mean 'window'?"),
    (["benchmark", "{tmp}/no-workloads.yaml"], "workloads: missing: say what it is"),
    (["benchmark", "{tmp}/empty.yaml"], "expected a mapping of keys, found NoneType"),
    (
        ["benchmark", "smoke", "--batch-sizes", "0"],
        "batch_sizes.0: expected at least 1, found 0",
    ),
    (["benchmark", "smoke", "--batch-sizes", "two"], "batch_sizes: expected a whole number, found 'two'"),
    (["benchmark", "smoke", "--batch-sizes", "2,2"], "batch size '2' is listed twice"),
    (["benchmark", "smoke", "--repetitions", "0"], "repetitions: expected a number of repetitions from 1 on"),
    (["benchmark", "smoke", "--precision", "int4"], "precision.0: expected 'fp32', 'tf32', 'bf16' or 'fp16'"),
    (["benchmark", "smoke", "--mode", "fast"], "mode: expected 'sync' or 'async', found 'fast'"),
    (["benchmark", "smoke", "--threads", "many"], "threads: "),
    (["benchmark", "smoke", "--seed", "x"], "seed: expected a whole number, found 'x'"),
    (["benchmark", "smoke", "--device", "xenon"], "unknown device 'xenon': did you mean 'xeon'?"),
    (["benchmark", "smoke", "--device", "gpu"], "device 'gpu' needs an NVIDIA GPU: none found"),
    (["benchmark", "smoke", "--device", "orin"], "device 'orin' needs an NVIDIA Jetson"),
    (["benchmark", "smoke", "--compilers", "openvinos"], "unknown compiler 'openvinos': did you mean 'openvino'?"),
    (["benchmark", "smoke", "--compilers", "openvino?streams=2"], "compiler 'openvino': streams: unknown key"),
    (["benchmark", "smoke", "--compilers", "openvino?num_streams=0"], "num_streams"),
    (["benchmark", "smoke", "--compilers", "openvino?num_streams"], "write flags as name?flag=value"),
    (["benchmark", "smoke", "--workloads", "resnet1"], "unknown workload 'resnet1': did you mean 'resnet-18'?"),
    (["benchmark", "smoke", "--workloads", "time:resnet18"], "unknown workload scheme 'time': did you mean 'timm'?"),
    (["benchmark", "smoke", "--workloads", "timm:resnet1"], "resnet1"),
    (["benchmark", "smoke", "--workloads", "block:conv?width=wide"], "width"),
    (["benchmark", "smoke", "--workloads", "block:conv?wide=64"], "wide"),
    (["benchmark", "smoke", "--workloads", "onnx:{tmp}/missing.onnx"], "missing.onnx"),
    (["benchmark", "smoke", "--workloads", "onnx:{tmp}/broken.onnx"], "broken.onnx"),
    (["benchmark", "smoke", "--workloads", "torch:no.such.module:model"], "no.such.module"),
    (
        ["benchmark", "smoke", "--workloads", "resnet18", "--resume", "--home", "{tmp}"],
        "has nothing to resume",
    ),
    (
        ["benchmark", "smoke", "--workloads", "resnet18", "--home", "/proc/none"],
        "cannot write studies to /proc/none",
    ),
    (["benchmark", "smoke", "--workloads", "resnet18", "--tracking-uri", "gopher://x"], "gopher"),
    (["info", "compilers", "openvinos"], "unknown compiler 'openvinos'"),
    (["info", "workloads", "timm:resnet1"], "resnet1"),
    (["study", "sync", "quick", "--all"], "name studies, or give --all or --watch"),
    (["compare", "--format", "xml", "--tracking-uri", "sqlite:///{tmp}/x.db"], "format: expected table, markdown"),
    (
        ["compare", "--output", "x.docx", "--tracking-uri", "sqlite:///{tmp}/x.db"],
        "x.docx: expected an ending of .md, .tex",
    ),
    (["compare", "--tracking-uri", "http://127.0.0.1:9"], "127.0.0.1:9"),
]


@pytest.fixture
def wrong_files(tmp_path: Path) -> Path:
    valid = "workloads: [resnet18]\ncompilers: [identity]\nbatch_sizes: [1]\n"
    files = {
        "list.yaml": "- resnet18\n",
        "tabs.yaml": "workloads:\n\t- resnet18\n",
        "empty.yaml": "",
        "unknown-key.yaml": f"{valid}batchsizes: [2]\n",
        "nested-key.yaml": valid + "warmup: {windows: 3}\n",
        "no-workloads.yaml": "compilers: [identity]\nbatch_sizes: [1]\n",
        "broken.onnx": BROKEN_ONNX,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07\xfb\xff")
    return tmp_path


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("arguments", "message"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_request_is_one_line_and_writes_nothing(
    arguments: list[str], message: str, wrong_files: Path, cli, monkeypatch: pytest.MonkeyPatch, clean_environment
) -> None:
    home = wrong_files / "home"
    monkeypatch.setenv("NGRAPH_HOME", str(home))
    monkeypatch.chdir(wrong_files)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    before = set(wrong_files.iterdir())
    code, out, err = cli(*(text.replace("{tmp}", str(wrong_files)) for text in arguments))
    # Nothing is wrong with a request to a server that is away.
    assert (code, out) == (1 if message == "127.0.0.1:9" else 2, ""), err
    line = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert len(line) == 1, err
    assert line[0].startswith("error: ")
    assert message.replace("{tmp}", str(wrong_files)) in line[0]
    assert "Traceback" not in err
    assert not list(home.glob("studies/*"))
    assert not list((wrong_files / "studies").glob("*"))
    assert {path.name for path in set(wrong_files.iterdir()) - before} <= {"home", "studies"}


def verbs(table: Verbs, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """How every verb that help shows is typed."""
    for name, (place, line) in table.items():
        if isinstance(place, str):
            if line:
                yield (*path, name)
        else:
            yield from verbs(place, (*path, name))


def test_an_error_is_broken_between_words_on_a_terminal(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    whole = cli("benchmark", "smok")[2]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    err = click.unstyle(cli("benchmark", "smok")[2])
    assert len(whole) > 50 >= max(map(len, err.splitlines()))
    assert err.split() == whole.split()


def test_help_fits_on_one_screen(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = cli("--help")
    assert code == 0
    assert len(out.splitlines()) <= 24
    for verb in ("benchmark", "compare", "recommend", "doctor", "results", "engine", "study", "info"):
        assert f"  {verb} " in out
    assert "  project " not in out


def test_no_group_has_more_than_twelve_verbs() -> None:
    assert all(len(place) <= 12 for place, _ in app._VERBS.values() if not isinstance(place, str))


def test_no_verb_shows_help(cli) -> None:
    code, out, err = cli()
    assert (code, err) == (2, "")
    assert "Verbs:" in out


@pytest.mark.parametrize("path", list(verbs(app._VERBS)), ids=" ".join)
def test_every_verb_explains_itself(path: tuple[str, ...], cli) -> None:
    code, out, _ = cli(*path, "--help")
    assert code == 0
    # A server answers its clients, and has nothing to say to a program that started it. The verbs of a fleet have options of
    # their own.
    assert "--json" in out or path[-1] in ("serve", "server", "fleet")


@pytest.mark.parametrize(
    ("typed", "meant"), [("pull", "'engine pull'"), ("list", "'engine list' or 'study list'"), ("compar", "'compare'")]
)
def test_a_verb_without_its_group_is_told_with_it(typed: str, meant: str, cli) -> None:
    code, _, err = cli(typed)
    assert code == 2
    assert f"no verb {typed!r}: did you mean {meant}?" in err


def test_version(cli) -> None:
    assert cli("--version")[1] == f"mlflow-ngraph, version {__version__}\n"


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The verb 'studies' raises."""

    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr("mlflow_ngraph.cli.studies.studies", broken)


def test_a_fault_of_ours_is_one_line_too(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("something\nwent wrong"))
    code, _, err = cli("study", "list")
    assert (code, err) == (1, "error: unexpected RuntimeError: something went wrong; --debug shows the traceback\n")


def test_debug_shows_where(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("something went wrong"))
    code, _, err = cli("--debug", "study", "list")
    assert code == 1
    assert err.startswith("Traceback (most recent call last):")
    assert "in broken" in err
    assert err.endswith("RuntimeError: something went wrong\n")


def test_control_characters_of_an_error_never_reach_the_terminal(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("said \x1b[2J\x1b]0;title\x07 by a server"))
    for options in ([], ["--debug"]):
        told = cli(*options, "study", "list")[2]
        assert "by a server" in told
        assert "\x1b" not in told


def test_no_login_is_in_an_error_or_a_traceback(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://annalena:s3cret@host"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    failing(monkeypatch, RuntimeError(f"{address}/api: no login for 'annalena' with 's3cret'"))
    for options in ([], ["--debug"]):
        told = cli(*options, "study", "list")[2]
        assert "http://host/api: no login for" in told
        assert "annalena" not in told
        assert "s3cret" not in told


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("PYTHONIOENCODING=ascii", 0, ""),
        ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0", 0, ""),
        ("closed", 1, "error: standard output is closed: nothing could be printed; everything else is done\n"),
        ("full", 1, "error: the system refuses: no space left on device; free some room; what was measured is safe\n"),
    ],
)
def test_where_output_cannot_be_written_as_it_is_nothing_breaks(how: str, code: int, told: str) -> None:
    before, after = {"closed": ("", ">&-"), "full": ("", "> /dev/full")}.get(how, (f"env {how} ", "> /dev/null"))
    for verb in ("study list", "study list --json"):
        done = subprocess.run(
            f"{before}{sys.executable} -m mlflow_ngraph {verb} {after}",
            shell=True, check=False, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (code, told)


@pytest.mark.usefixtures("processes")
def test_standard_streams_stay_open_in_what_the_process_becomes() -> None:
    """A socket of the server in the place of one would be printed to."""
    after = "import os; [os.fstat(number) for number in (0, 1, 2)]"
    code = f"import os, sys; from mlflow_ngraph.cli import streams; streams.prepare(); os.execv(sys.executable, ['-', '-c', {after!r}])"
    done = subprocess.run(f'{sys.executable} -c "{code}" <&- >&- 2>&-', shell=True, check=False)
    assert done.returncode == 0


def test_an_interrupt_tells_its_signal(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_ngraph.processes.interruption import Interrupted

    failing(monkeypatch, KeyboardInterrupt())
    code, _, said = cli("study", "list")
    assert (code, said.strip()) == (130, "error: interrupted")
    assert "run the same study again" in app._explain(KeyboardInterrupt(), measures=True)[0]
    failing(monkeypatch, Interrupted(signal.SIGTERM))
    assert cli("study", "list")[0] == 143
    whole = Interrupted(signal.SIGTERM)
    whole.advice = "everything is measured"
    assert app._explain(whole, measures=True) == ("interrupted; everything is measured", 143)


@pytest.mark.usefixtures("processes")
def test_a_reader_that_goes_away_gets_no_complaint() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow_ngraph", "info", "workloads", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.usefixtures("processes")
def test_no_colours_where_nobody_looks(cli) -> None:
    assert "\x1b" not in "".join(map(str, cli("info", "compilers")))
    assert "\x1b" not in cli("benchmark", "nope")[2]


@pytest.mark.usefixtures("processes")
def test_colours_on_a_terminal() -> None:
    leader, follower = os.openpty()
    subprocess.run(
        [sys.executable, "-m", "mlflow_ngraph", "info", "devices"],
        stdout=follower,
        cwd=ROOT,
        check=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(follower)
    assert b"\x1b[" in os.read(leader, 100_000)


@pytest.mark.usefixtures("processes")
def test_a_width_of_zero_is_unknown() -> None:
    """As containers without a terminal say it."""
    environment = {**os.environ, "COLUMNS": "0"}
    command = [sys.executable, "-m", "mlflow_ngraph", "study", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "smoke" in done.stdout
