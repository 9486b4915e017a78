"""The page where users have to log in, below a prefix: nobody sees what MLflow would not show him."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.browser import Pages
from tests.support.records import study_record
from tests.support.served import record, slower
from tests.support.servers import OURS, serve

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]

ADMIN = ("admin", "a-long-admin-password")
ALICE = ("alice", "a-long-alice-password")
BOB = ("bob", "a-long-bob-password")
CONFIG = """
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///{home}/auth.db
admin_username = {admin[0]}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
admin_password = {admin[1]}
auth_cache_ttl_seconds = 600
"""


@pytest.fixture(scope="module")
def guarded(processes: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on which Alice and the administrator have recorded a study each."""
    pytest.importorskip("flask_wtf", reason="MLflow's users need Flask-WTF")
    home = tmp_path_factory.mktemp("guarded")
    shutil.copyfile(sqlite_template, home / "mlflow.db")
    config = home / "auth.ini"
    config.write_text(CONFIG.format(home=home, admin=ADMIN))
    environment = {
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_AUTH_ADMIN_PASSWORD": ADMIN[1],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a secret of this test",
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
        "XDG_CACHE_HOME": str(home),
    }
    with (
        pytest.MonkeyPatch.context() as patch,
        serve(
            home, f"sqlite:///{home / 'mlflow.db'}", "--app-name", "ngraph-auth", prefix="/lab", **environment
        ) as address,
    ):
        for name in OURS:
            patch.delenv(name, raising=False)
        for user, password in (ALICE, BOB):
            made = requests.post(
                f"{address}/api/2.0/mlflow/users/create",
                json={"username": user, "password": password},
                auth=ADMIN,
                timeout=60,
            )
            assert made.status_code == 200, made.text
        for (user, password), device in ((ALICE, "xeon"), (ADMIN, "orin")):
            patch.setenv("MLFLOW_TRACKING_USERNAME", user)
            patch.setenv("MLFLOW_TRACKING_PASSWORD", password)
            one = slower(study_record(home / device, study_id=f"of-{user}", device=device), "resnet18")
            # Each request has a password to be checked, which takes its time.
            one.lanes = dict(list(one.lanes.items())[:1])
            record(address, f"of {user}", one, home / device)
        yield address


def ask(address: str, who: tuple[str, str] | None, question: str = "options") -> requests.Response:
    return requests.get(f"{address}/ngraph/api/{question}", auth=who, timeout=60)


def devices(address: str, who: tuple[str, str]) -> list[str]:
    found: Any = ask(address, who).json()["devices"]
    return list(found)


def test_strangers_see_nothing(guarded: str) -> None:
    for who in (None, ("alice", "wrong"), ("mallory", "a-long-other-password")):
        for path in ("", "/", "/static/app.js", "/api/options", "/api/comparison", "/api/findings"):
            answer = requests.get(f"{guarded}/ngraph{path}", auth=who, timeout=60, allow_redirects=False)
            assert answer.status_code == 401, path
            assert "resnet18" not in answer.text


def test_everybody_sees_the_experiments_that_he_may_read(guarded: str) -> None:
    assert devices(guarded, ALICE) == ["xeon"]
    assert devices(guarded, ADMIN) == ["orin", "xeon"]
    assert devices(guarded, BOB) == []
    # The same again, now that results are kept in memory.
    assert devices(guarded, ALICE) == ["xeon"]
    denied = ask(guarded, ALICE, "comparison?device=orin")
    assert (denied.status_code, denied.json()["error"]) == (400, "unknown device 'orin': known: xeon")
    others = ask(guarded, ADMIN).json()["experiments"]
    secret = next(one["id"] for one in others if one["name"] == "of admin")
    assert ask(guarded, ALICE, f"comparison?experiment={secret}").status_code == 400
    assert "orin" not in ask(guarded, ALICE, "findings").text


def test_whoever_has_nothing_to_read_is_told_what_to_do(guarded: str, pages: Pages) -> None:
    watched = pages.open(f"{guarded}/ngraph", http_credentials={"username": BOB[0], "password": BOB[1]})
    watched.page.wait_for_selector("#empty:not([hidden])")
    command = watched.page.inner_text("#first-command")
    assert f"MLFLOW_TRACKING_URI={guarded}\n" in command
    assert "mlflow-ngraph benchmark" in command
    assert watched.problems == []


def test_the_page_works_below_a_prefix(guarded: str, pages: Pages) -> None:
    watched = pages.open(f"{guarded}/ngraph", http_credentials={"username": ALICE[0], "password": ALICE[1]})
    watched.page.wait_for_selector("#curves .js-plotly-plot")
    assert watched.page.locator("#curves figcaption").all_inner_texts() == ["resnet18 · xeon"]
    link = watched.page.locator("#table a").first.evaluate("link => link.href")
    assert link.startswith(f"{guarded}/#/experiments/")
    assert watched.problems == []
