"""The page as a client of HTTP sees it: its files, its headers, and how it answers."""

from __future__ import annotations

import pytest
import requests

from tests.support.served import EXPERIMENT, SLOWER, Served

pytestmark = pytest.mark.usefixtures("compilers")


def get(served: Served, path: str, **options: object) -> requests.Response:
    return requests.get(f"{served.address}/ngraph{path}", timeout=60, **options)  # type: ignore[arg-type]


def test_the_page_allows_nothing_but_itself(served: Served) -> None:
    answer = get(served, "/")
    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert [name for name, value in policy.items() if "unsafe" in value] == ["style-src"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "http://" not in answer.text
    assert "https://" not in answer.text


def test_without_a_slash_the_address_keeps_what_it_says(served: Served) -> None:
    answer = get(served, "?device=xeon", allow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (302, "ngraph/?device=xeon")
    assert get(served, "?device=xeon").url.endswith("/ngraph/?device=xeon")


def test_files_come_from_the_installed_packages(served: Served) -> None:
    plotly = get(served, "/static/plotly.min.js")
    assert "plotly.js v" in plotly.text[:200]
    assert "immutable" in plotly.headers["Cache-Control"]
    assert plotly.headers["Content-Encoding"] == "gzip"
    script = get(served, "/static/app.js", headers={"Accept-Encoding": "identity"})
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "Content-Encoding" not in script.headers
    for path in ("/static/pages.py", "/static/..%2Fpages.py", "/static/"):
        assert get(served, path).status_code == 404


def test_options_and_numbers_are_those_that_were_recorded(served: Served) -> None:
    told = get(served, "/api/options").json()
    assert told["devices"] == ["orin", "xeon"]
    assert [one["name"] for one in told["experiments"]] == [EXPERIMENT]
    assert told["studies"] == 2
    answer = get(served, "/api/comparison?workload=timm:resnet18")
    assert answer.headers["Cache-Control"] == "no-store"
    curves = {(one["device"], one["compiler_label"]): one for one in answer.json()["series"]}
    for device, factor in (("xeon", 1.0), ("orin", SLOWER)):
        lane = next(
            lane
            for lane in served.records["xeon"].lanes.values()
            if (lane.lane.label, lane.lane.compiler) == ("resnet18", "openvino")
        )
        expected = [lane.cells[batch].metrics["throughput"] * factor for batch in (1, 2, 4)]
        assert curves[device, "openvino"]["value"] == pytest.approx(expected)
    assert curves["xeon", "openvino"]["lane_run_id"]
    assert curves["xeon", "openvino"]["model_id"].startswith("m-")


def test_wrong_questions_are_answered_with_one_line(served: Served) -> None:
    answer = get(served, "/api/comparison?device=mars")
    assert answer.status_code == 400
    assert answer.json() == {"error": "unknown device 'mars': known: orin, xeon"}
    assert get(served, "/api/comparison", data=b"").status_code == 200
    assert requests.post(f"{served.address}/ngraph/api/options", timeout=60).status_code == 405


def test_mlflow_itself_is_still_there(served: Served) -> None:
    assert "MLflow" in requests.get(f"{served.address}/", timeout=60).text
    assert requests.get(f"{served.address}/version", timeout=60).status_code == 200
