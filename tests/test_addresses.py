"""Nothing of a login is shown, whatever characters it has."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.addresses import redacted, shown

SCHEMES = ("http", "https", "postgresql", "postgresql+psycopg2", "mysql+pymysql")
secrets = st.text(
    st.sampled_from("abcXYZ019:@/?#&=%+ \\[]{}()'\"|*~…é漢") | st.characters(codec="utf-8"), min_size=1, max_size=12
).map(lambda text: f"Q7{text}7Q")
"""Recognised by how they begin and end, which no address has otherwise."""


@given(st.sampled_from(SCHEMES), secrets, secrets, st.booleans())
def test_no_login_is_shown(scheme: str, user: str, password: str, escaped: bool) -> None:
    if escaped:
        user, password = quote(user, safe=""), quote(password, safe="")
    for login in (f"{user}:{password}", user, f":{password}", f"anna:{password}"):
        address = f"{scheme}://{login}@host.lab:5000/base"
        for text in (shown(address), redacted(f"cannot reach {address}: refused", address)):
            assert "Q7" not in text
            assert "7Q" not in text
        if escaped:
            assert shown(address) == f"{scheme}://host.lab:5000/base"


@given(st.sampled_from(SCHEMES), secrets)
def test_no_query_is_shown(scheme: str, value: str) -> None:
    for query in (f"token={value}", f"sslmode=require&password={value}", value):
        for where in ("host.lab", "host.lab/base", "anna:pw@host.lab/base"):
            address = f"{scheme}://{where}?{query}"
            for text in (shown(address), redacted(f"no answer from {address}", address)):
                assert "Q7" not in text
                assert "7Q" not in text


@given(secrets)
def test_a_library_that_quotes_the_login_alone_tells_nothing(password: str) -> None:
    address = f"postgresql://annalena:{quote(password, safe='')}@host/base"
    for spelt in (password, quote(password, safe="")):
        text = redacted(f'FATAL: authentication of user "annalena" with {spelt} failed', address)
        assert password not in text
        assert "annalena" not in text
        assert "FATAL: authentication of user" in text


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:5000",
        "https://lab.example.org/mlflow/",
        "http://[::1]:5000",
        "sqlite:////home/anna@lab/with space/m.db",
        "sqlite:///m.db",
        "postgresql://db.lab:5432/mlflow",
        "mlflow-artifacts:/1/abc/artifacts",
        "s3://bucket/some/path",
        "file:///srv/a@b",
        "/srv/a@b/mlruns",
        "./mlruns",
        "databricks",
        "",
    ],
)
def test_an_address_without_a_login_is_shown_as_it_is(address: str) -> None:
    assert shown(address) == address
    assert redacted(f"see {address}", address) == f"see {address}"


@pytest.mark.parametrize(
    "address",
    ["http://anna:a/b@host", "http://anna:a?b@host/x", "http://anna:a#b@host", "http://[::1", "http://anna:secret"],
)
def test_an_ambiguous_address_is_not_shown(address: str) -> None:
    assert shown(address) == "http://…"


def test_addresses_in_a_text_that_nobody_announced() -> None:
    text = "GET https://anna:s3cret@store.lab:9000/bucket/key?X-Amz-Signature=abc: 403; url: /bucket/key?X-Amz-Signature=abc"
    assert redacted(text) == "GET https://store.lab:9000/bucket/key: 403; url: /bucket/key"
