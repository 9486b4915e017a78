"""Where torch is not installed, a test that needs it is skipped and says so; where it is, nothing here does anything."""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec

import pytest

MISSING = frozenset(name for name in ("torch", "torchvision", "timm") if find_spec(name) is None)


def lacks(error: BaseException | None) -> str | None:
    """The package of PyTorch that was not there, if that is what went wrong: an import failed, or the tool under test says
    that a compiler lacks it."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in MISSING:
            return error.name
        for name in MISSING:
            if f"the package {name} is not installed" in str(error):
                return name
        error = error.__cause__ or error.__context__
    return None


def skipped(report: pytest.CollectReport | pytest.TestReport, where: tuple[str, int], name: str) -> None:
    report.outcome = "skipped"
    report.longrepr = (*where, f"Skipped: needs {name}, which is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    call = getattr(report, "call", None)
    if report.failed and call is not None and call.excinfo and (name := lacks(call.excinfo.value)):
        skipped(report, (str(collector.path), 0), name)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo and (name := lacks(call.excinfo.value)):
        skipped(report, (str(item.path), item.location[1] or 0), name)
    return report
