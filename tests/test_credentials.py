"""Credentials are recognised by their names, forms and places, and nothing of them is left in a text."""

from __future__ import annotations

import sys

import pytest

from mlflow_ngraph import credentials
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.processes import logs, parent
from mlflow_ngraph.processes.child import ChildFailure
from mlflow_ngraph.verdicts import Verdict

BY_NAME = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *(
        "PGPASSWORD",
        "PGPASS",
        "MYSQL_PWD",
        "MY_PW",
        "WANDB_API_KEY",
        "DEPLOY_KEY",
        "GH_PAT",
        "NETRC_AUTH",
        "SLACK_WEBHOOK_URL",
        "SENTRY_DSN",
        "CI_JOB_JWT",
        "PRIVATE_PEM",
        "GCP_SA_JSON",
        "TWINE_CREDS",
        "vault_secret",
    ),
)
BY_FORM = (
    "hf_aZbYcXdWeVfUgThSiRjQ",
    "ghp_0123456789abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END PRIVATE KEY-----",
)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_value_of_a_secret_variable_is_hidden_in_each_spelling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "zq S/1&'é")
    quoted = ("zq%20S%2F1%26%27%C3%A9", "zq%20S/1%26%27%C3%A9", repr("zq S/1&'é"))
    for spelt in ("zq S/1&'é", *quoted, "enEgUy8xJifDqQ==", "enEgUy8xJifDqQ"):
        text = credentials.hidden(f"login with {spelt} was refused")
        assert "zq" not in text
        assert "enEg" not in text
        assert text.startswith("login with ")
        assert text.endswith(" was refused")


@pytest.mark.parametrize("secret", BY_FORM)
def test_the_forms_of_widespread_services_are_hidden(secret: str) -> None:
    assert credentials.hidden(f"got {secret}: no") in ("got …: no", "got …")
    assert credentials.is_value(secret)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer zqS-header",
        "{'Authorization': 'Basic zqS-header'}",
        "connect(host=h, password='zqS-header')",
        "api_key=zqS-header&x=1",
        "see https://user:zqS-header@host/path?x=1, please",
        "url: /bucket/key?X-Amz-Signature=zqS-header",
    ],
)
def test_what_follows_the_word_for_it_is_hidden(text: str) -> None:
    assert "zqS" not in credentials.hidden(text)


def test_the_logins_of_addresses_in_arguments_and_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ngraph", "--tracking-uri=http://anna:zqS-argument@lab"])
    monkeypatch.setenv("MIRRORS", "https://plain.lab https://anna:zqS-variable@mirror.lab/simple")
    text = credentials.hidden("zqS-argument, zqS-variable and zqS-word", "postgresql://anna:zqS-word@db")
    assert text == "…, … and …"


@pytest.mark.parametrize(
    "text",
    [
        "Conv_0: expected 3 channels, found 4 at model.py:12: x = self.stem(x)",
        "unexpected token ';' in line 3; the keys are a, b",
        "no file /srv/models/hub/model.onnx; see https://pytorch.org/docs/stable/export.html",
        "line one\n  line two\n",
    ],
)
def test_everything_else_stays_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "1")
    monkeypatch.setenv("USE_AUTH_TOKEN", "true")
    monkeypatch.setenv("SERVICE_CREDENTIAL_FILE", "/srv/models")
    assert credentials.hidden(text) == text


def test_a_long_line_without_blanks_takes_no_time() -> None:
    for text in ("a" * 4_000_000, "a." * 2_000_000, "hf_ " * 1_000_000, "password" * 400_000):
        assert len(credentials.hidden(text)) == len(text)


def test_texts_of_children_lose_their_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "zqS-token")
    failure = ChildFailure(Verdict.FAILED, "refused zqS-token\x1b[2J", "one zqS-token\ntwo\n")
    assert (failure.reason, str(failure), failure.tail) == ("refused …\ufffd[2J", "refused …\ufffd[2J", "one …\ntwo\n")
    for error in (ValueError("zqS-token"), NGraphError("zqS-token"), SystemExit("zqS-token"), MemoryError("zqS-token")):
        assert "zqS" not in one_line(error) + str(parent.described(error))


@pytest.mark.parametrize("lines", [1, logs.MOST_BYTES // 16])
def test_logs_lose_them_when_their_child_has_ended(lines, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "zqS-token")
    log = tmp_path / "log"
    log.write_bytes(b"\xff a log of zqS-token\n" * lines)
    logs.tidy(log)
    assert b"zqS" not in log.read_bytes()
    assert log.read_bytes().startswith(b"\xff a log of \xe2\x80\xa6\n")
    assert log.stat().st_size < logs.MOST_BYTES


def test_texts_of_options_that_look_like_credentials_are_found() -> None:
    options = {
        "inputs": [{"shape": ["batch", 3]}],
        "kwargs": {"password": "x", "key": {"env": "KEY"}, "source": "s3://u:p@bucket", "key_size": 3, "num_key": 1},
        "api_key": "x",
    }
    assert list(credentials.found(options)) == ["kwargs.password", "kwargs.source", "api_key"]
