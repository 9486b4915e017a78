"""Fixtures that tests of several parts share."""

import os
import signal

# Before anything imports PyTorch: several processes test at the same time, and threads that wait for each other at every
# operation of a small model keep the processors from whoever could go on. Studies give their processes threads of their own.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")

from hypothesis import settings

from tests.support.affinity import every_processor
from tests.support.browser import browser, pages
from tests.support.fake import broken_compiler, fake_compiler, miscompiler
from tests.support.few_trials import all_trials
from tests.support.forked import forked, timed_alone
from tests.support.keys import signing_key
from tests.support.lab import lab
from tests.support.lock import lock_folder
from tests.support.logged import logged
from tests.support.own import own_studies
from tests.support.quick import (
    compilers,
    processes,
    pytest_collection_modifyitems,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    quick,
)
from tests.support.served import served
from tests.support.servers import (
    clean_environment,
    mlflow_server,
    postgres_uri,
    server_uri,
    sqlite_template,
    sqlite_uri,
)
from tests.support.slurm import slurm
from tests.support.tracked import no_named_variables, no_tracking_uri
from tests.support.variants import shelf
from tests.support.without_torch import pytest_make_collect_report, pytest_runtest_makereport
from tests.support.written import readable_events

__all__ = [
    "all_trials",
    "broken_compiler",
    "browser",
    "clean_environment",
    "compilers",
    "every_processor",
    "fake_compiler",
    "forked",
    "lab",
    "lock_folder",
    "logged",
    "miscompiler",
    "mlflow_server",
    "no_named_variables",
    "no_tracking_uri",
    "own_studies",
    "pages",
    "postgres_uri",
    "processes",
    "pytest_collection_modifyitems",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "quick",
    "readable_events",
    "served",
    "server_uri",
    "shelf",
    "signing_key",
    "slurm",
    "sqlite_template",
    "sqlite_uri",
    "timed_alone",
]

# How long an example takes is a question of who else computes.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

# A shell that starts the tests in the background has them ignore these, and everything that they start would.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# GNU readline, which pytest loads, tells the processes that it starts how wide it believes the terminal to be. What verbs
# say is looked for in whole lines; where they break is what tests/cli/test_widths.py is about.
os.environ.pop("LINES", None)
os.environ["COLUMNS"] = "1000"
