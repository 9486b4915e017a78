"""Quick tests start no process and no server, and compile nothing: what does so asks for a fixture, and counts as slow.

``make check`` runs the others. That they are quick is not a matter of trust: a process that is started without the fixture
fails the test.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

import pytest

SLOW = frozenset(
    {
        *("processes", "compilers", "browser", "pages", "logged", "served", "shelf"),
        *("lab", "slurm", "mlflow_server", "postgres_uri", "server_uri", "sqlite_uri", "sqlite_template"),
    }
)
"""Fixtures that start processes, servers, databases, or the runtimes of compilers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long by what it asks for. Files with such tests come first, so that no worker has one left when the
    others have nothing more to do; those with a browser come last, since its driver leaves an event loop running, and
    `asyncio.run` and the compiler of Python fail in tests after it."""
    slow, browsing = set(), set()
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            browsing.add(item.path)
        if SLOW.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
            slow.add(item.path)
    items.sort(key=lambda item: (item.path in browsing, item.path not in slow))


@pytest.fixture(scope="session")
def processes() -> None:
    """The test starts processes."""


@pytest.fixture(scope="session")
def compilers() -> None:
    """The test builds, compiles or runs real models."""


class _Now:
    """What runs: outside of tests nothing is refused."""

    quick: ClassVar[bool] = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of a test, those that it shares with others included."""
    _Now.quick = item.get_closest_marker("slow") is None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Before what tests share is ended: the last of a server's tests need not be one that asks for it."""
    _Now.quick = False


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    """Refuse processes to those who have not asked for them."""
    start, fork = subprocess.Popen.__init__, BaseProcess.start

    def refuse_to_fork(self: BaseProcess) -> None:
        if _Now.quick:
            pytest.fail(f"a quick test starts the process {self.name}; ask for the fixture `processes`")
        fork(self)

    def refuse(self: Any, args: Any, *others: Any, **options: Any) -> None:
        if not _Now.quick or args[0] == "fc-list":  # matplotlib asks once on a new machine where its fonts lie
            start(self, args, *others, **options)
            return
        pytest.fail(f"a quick test starts a process: {args!r}; ask for the fixture `processes`")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        patch.setattr(BaseProcess, "start", refuse_to_fork)
        yield
