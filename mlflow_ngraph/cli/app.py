"""Root of the command line: verbs, exit codes, errors in one line."""

from __future__ import annotations

import errno
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

from mlflow_ngraph import credentials
from mlflow_ngraph.cli import streams
from mlflow_ngraph.cli.lazy import LazyGroup, Verbs
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.processes import interruption
from mlflow_ngraph.text import harmless
from mlflow_ngraph.version import __version__

_HERE = "mlflow_ngraph.cli"
_ARCHIVES, _CHANGES = "mlflow-ngraph-archives", "mlflow-ngraph-changes"
_BISECT, _ENGINES, _REPORT = "mlflow-ngraph-bisect", "mlflow-ngraph-engines", "mlflow-ngraph-report"
_SERVE, _TESTING = "mlflow-ngraph-serve", "mlflow-ngraph-testing"
_VERBS: Verbs = {
    "benchmark": (f"{_HERE}.benchmark:benchmark", "Compile, verify, measure and record what a study describes."),
    "compare": (f"{_HERE}.compare:compare", "Show recorded results side by side."),
    "recommend": (f"{_HERE}.recommend:recommend", "Name the best cell for an objective under limits."),
    "doctor": (f"{_HERE}.doctor:doctor", "Check this machine; change nothing."),
    "results": (
        {
            "findings": (f"{_HERE}.findings:findings", "Say in words what results show, the most important first."),
            "report": (_REPORT, "Write the paper's tables and figures, as one page."),
            "gate": (_CHANGES, "Fail when a candidate is worse than its baseline allows, for CI."),
            "history": (_CHANGES, "Follow one cell over time and commits."),
            "diff": (_CHANGES, "Show what differs between two runs: flags, versions, machine, results."),
            "explain": (_ENGINES, "Show what compilers made of a model."),
            "bisect": (_BISECT, "Find the first operator that a compiler computes wrongly."),
            "recompute": (_ARCHIVES, "Derive recorded figures again from their raw samples."),
            "variance": (_ARCHIVES, "Show where variance comes from, and what to measure more of."),
        },
        "Read recorded results: findings, report, gate, ...",
    ),
    "engine": (
        {
            "list": (_ENGINES, "List logged engines, and whether they fit this machine."),
            "pull": (f"{_HERE}.pull:pull", "Download an engine by name, or the best one within limits."),
            "verify": (f"{_HERE}.verify:verify", "Check digests, compatibility, outputs and speed."),
            "promote": (_ENGINES, "Register an engine, as champion if it is better than the last."),
            "sign": (_ENGINES, "Sign an engine with a key."),
            "prune": (_ENGINES, "Remove old engines from the tracking server, by rule."),
            "serve": (_SERVE, "Serve an engine over HTTP, by the Open Inference Protocol."),
            "export-triton": (_SERVE, "Write an engine as a model for NVIDIA Triton."),
        },
        "Find, verify, deploy and remove compiled engines.",
    ),
    "study": (
        {
            "list": (f"{_HERE}.studies:studies", "List the ready-made studies."),
            "runs": (f"{_HERE}.runs:runs", "List the studies run on this machine, and whether they are recorded."),
            "sync": (f"{_HERE}.sync:sync", "Record studies that were measured without a tracking server."),
            "export": (_ARCHIVES, "Write studies into one file, to be carried or published."),
            "import": (_ARCHIVES, "Bring studies out of such files, and record them."),
            "cleanup": (f"{_HERE}.cleanup:cleanup", "End runs on the tracking server whose process has died."),
        },
        "List, record, carry and clean up studies.",
    ),
    "local": (
        {
            "cache": (f"{_HERE}.cache:cache", "List the engines that studies share, or remove some."),
            "clean": (f"{_HERE}.clean:clean", "List kept studies and engines, or remove some."),
            "first-contact": (_TESTING, "Self-test for a new machine, with a report."),
        },
        "Look after this machine: caches, disk, a first trial.",
    ),
    "info": (
        {
            "compilers": (
                f"{_HERE}.compilers:compilers",
                "List compilers, their flags, and whether they can run here.",
            ),
            "workloads": (f"{_HERE}.workloads:workloads", "Describe models: parameters, MACs, family, input."),
            "devices": (f"{_HERE}.devices:devices", "List device profiles, and describe this machine."),
        },
        "Describe compilers, workloads and devices.",
    ),
    "server": (_SERVE, "Run a tracking server with the page at /ngraph."),
    "fleet": (f"{_HERE}.fleet:fleet", "Run studies on the machines of a lab."),
    "project": (f"{_HERE}.project:project", ""),
}

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=LazyGroup, verbs=_VERBS, points=_HERE, context_settings=CONTEXT)
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.version_option(__version__, "-V", "--version", prog_name="mlflow-ngraph")
def cli(debug: bool) -> None:
    """Find the graph compiler, flags and batch size for a model on this device.

    Exit codes: 0 success, 1 failure, 2 wrong request (nothing written), 3 no good answer.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code of the verb, or of the error that ended it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    closed = streams.prepare()
    try:
        # What a verb has begun, it ends: children, their temporary files, a download.
        with interruption.ending():
            code = cli.main(given, prog_name="mlflow-ngraph", standalone_mode=False)
        sys.stdout.flush()
        if closed and not code:
            raise NGraphError("standard output is closed: nothing could be printed; everything else is done")
        return int(code or 0)
    except BrokenPipeError as error:
        if not streams.reader_is_gone(sys.stdout):
            return _told(error, given)
        # The reader (head, less) has seen enough; keep the interpreter from complaining when it flushes at exit.
        streams.silence(sys.stdout)
        return 1
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        return 2
    except (click.ClickException, click.Abort, KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - told in one line
        return _told(error, given)


def _told(error: BaseException, given: Sequence[str]) -> int:
    """Print an error in one line; returns the exit code."""
    message, code = _explain(error, measures="benchmark" in given)
    with suppress(OSError):  # there may be nobody left to tell
        if "--debug" in given[: _position_of_verb(given)]:
            trace = "".join(traceback.format_exception(error)).splitlines()
            click.echo("\n".join(harmless(credentials.hidden(line, *given)) for line in trace), err=True)
            return code
        # Nobody colours what is piped on; click sees to that.
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        said = harmless(credentials.hidden(" ".join(message.split()), *given))
        click.echo(_broken(said) if sys.stderr is not None and sys.stderr.isatty() else said, err=True)
    if isinstance(error, OSError):
        streams.silence(sys.stdout)
    return code


def _broken(said: str) -> str:
    """A message in lines of the terminal, which would break it within words and commands."""
    from mlflow_ngraph.cli import output

    return output.broken(f"error: {said}", shutil.get_terminal_size().columns, "  ").removeprefix("error: ")


def _explain(error: BaseException, *, measures: bool) -> tuple[str, int]:
    """Message for an error in one line, and the exit code."""
    if isinstance(error, NGraphError):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        message = error.format_message().rstrip(".")
        return f"{message}; see {context.command_path} --help" if context else message, error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        # click wraps an interrupt; the original one knows the signal.
        original = error.__cause__ or error
        advice = getattr(original, "advice", "") or "run the same study again to go on" * measures
        return "; ".join(filter(None, ("interrupted", advice))), 128 + getattr(original, "signum", signal.SIGINT)
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"the system refuses: {error.strerror[:1].lower()}{error.strerror[1:]}{where}{_advice(error)}", 1
    return f"unexpected {type(error).__name__}: {error}; --debug shows the traceback", 1


def _advice(error: OSError) -> str:
    """Remedy for an error of the system; a study's measurements are in its journal by then."""
    known = {
        errno.ENOSPC: "free some room; what was measured is safe",
        errno.EDQUOT: "free some room; what was measured is safe",
        errno.EFBIG: "raise the limit with ulimit -f; what was measured is safe",
        errno.EIO: "what was measured is safe",
        errno.EMFILE: "raise the limit with ulimit -n",
        errno.ENFILE: "close other programs",
        errno.ENAMETOOLONG: "choose a shorter name",
        errno.EROFS: "choose another place with --home or NGRAPH_HOME",
        errno.EACCES: "choose another place with --home or NGRAPH_HOME",
    }
    return f"; {known[error.errno]}" if error.errno in known else "; --debug shows where"


def _position_of_verb(arguments: Sequence[str]) -> int:
    return next((index for index, text in enumerate(arguments) if not text.startswith("-")), len(arguments))
