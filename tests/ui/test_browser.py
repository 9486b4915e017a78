"""A real server with results that the package has recorded: the page as a client of HTTP and a real browser see it, and what
stands in MLflow's own pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from mlflow_ngraph.tracking import views
from mlflow_ngraph.tracking.views import View
from tests.support.browser import Pages, Watched
from tests.support.served import EXPERIMENT, SLOWER, Served

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]

CHARTS = """
() => Object.fromEntries([...document.querySelectorAll("#curves figure")].map((figure) => [
    figure.querySelector("figcaption").textContent,
    (figure.querySelector(".chart").data ?? []).map((trace) => ({
        name: trace.name, x: [...trace.x], y: [...trace.y], fill: trace.fill ?? "none",
    })),
]))
"""
UNNAMED = """
() => [...document.querySelectorAll("input, select, button")]
    .filter((one) => !one.labels?.length && !one.ariaLabel && !one.textContent.trim()).map((one) => one.outerHTML)
"""

LENGTHEN = """() => {
  const texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  for (let one = texts.nextNode(); one; one = texts.nextNode()) if (one.data.includes('resnet18')) one.data = 'resnet18_'.repeat(12);
}"""
"""Gives every element that names a model a long label."""
SIDEWAYS = "() => [...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
"""Tables of which a part is out of sight."""


@pytest.fixture
def opened(served: Served, pages: Pages) -> Watched:
    watched = pages.open(f"{served.address}/ngraph/")
    settled(watched.page)
    return watched


def settled(page: Page) -> None:
    """Wait until the numbers are there, and every chart has been seen and drawn."""
    page.wait_for_selector("main[aria-busy=false] #table table")
    for chart in page.locator("#curves .chart").all():
        chart.scroll_into_view_if_needed()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#curves .chart')].every((one) => one.classList.contains('js-plotly-plot'))"
    )


def charts(page: Page) -> dict[str, list[dict[str, Any]]]:
    return dict(page.evaluate(CHARTS))


def throughput(served: Served, device: str, label: str, compiler: str) -> dict[int, float]:
    """What was recorded as ok, by batch size."""
    lanes = served.records[device].lanes.values()
    lane = next(one for one in lanes if (one.lane.label, one.lane.compiler) == (label, compiler))
    return {batch: cell.metrics["throughput"] for batch, cell in lane.cells.items() if cell.verdict == "ok"}


def test_curves_show_what_was_recorded_with_bands(served: Served, opened: Watched) -> None:
    shown = charts(opened.page)
    assert set(shown) == {"resnet18 · xeon", "resnet18 · orin", "deit-t · xeon"}
    traces = {trace["name"]: trace for trace in shown["resnet18 · xeon"]}
    lines = {name for name in traces if not name.endswith("95 % interval")}
    assert lines == {"identity", "onnxruntime[opt_level=2]", "openvino"}
    expected = throughput(served, "xeon", "resnet18", "openvino")
    assert traces["openvino"]["x"] == list(expected)
    assert traces["openvino"]["y"] == pytest.approx(list(expected.values()))
    for name in lines:
        band = traces[f"{name}: 95 % interval"]
        assert band["fill"] == "toself"
        assert (len(band["x"]), max(band["y"]) > max(traces[name]["y"])) == (6, True)
    (partly,) = [trace for trace in shown["deit-t · xeon"] if trace["name"].endswith("=2]")]
    assert partly["x"] == [1], "what is timeout or crashed is drawn"
    assert opened.page.locator("#curves .chart path.js-fill").count() >= 6
    assert opened.problems == []


def test_the_map_has_ratios_and_says_why_one_is_missing(opened: Watched) -> None:
    page = opened.page
    assert "Speed-up over identity, batch size 4" in page.inner_text("#map-title")
    xeon = page.locator("table.map[data-device=xeon]")
    row = xeon.locator("tbody tr", has_text="resnet18")
    assert [text.split("×")[0] for text in row.locator("td").all_inner_texts()] == ["1", "1.5", "2.5"]
    assert row.locator("td").last.evaluate("cell => cell.style.backgroundColor")
    assert xeon.locator("tbody tr", has_text="deit-t").locator("td").last.inner_text() == "unsupported"
    assert page.locator("table.map").count() == 2


def test_a_choice_changes_the_curves_and_is_kept_in_the_address(opened: Watched) -> None:
    page = opened.page
    page.get_by_label("deit-t", exact=True).check()
    page.wait_for_function("() => document.querySelectorAll('#curves figure').length === 1")
    settled(page)
    assert set(charts(page)) == {"deit-t · xeon"}
    page.get_by_label("Metric").select_option("latency_p50_ms")
    page.wait_for_function("() => document.getElementById('curves-title').textContent.startsWith('latency_p50_ms')")
    said = parse_qs(urlsplit(page.url).query)
    assert said == {"metric": ["latency_p50_ms"], "workload": ["timm:deit_tiny_patch16_224"]}
    page.reload()
    settled(page)
    assert set(charts(page)) == {"deit-t · xeon"}
    assert page.get_by_label("deit-t", exact=True).is_checked()
    assert page.get_by_label("Metric").input_value() == "latency_p50_ms"
    page.go_back()
    page.wait_for_function("() => document.getElementById('curves-title').textContent.startsWith('throughput')")
    assert opened.problems == []


def test_an_address_that_somebody_sends_shows_the_same(served: Served, pages: Pages) -> None:
    address = f"{served.address}/ngraph/?device=orin&facet=compiler&batch=4&sort=-value"
    page = pages.open(address).page
    settled(page)
    shown = charts(page)
    assert set(shown) == {f"resnet18 · {name}" for name in ("identity", "onnxruntime[opt_level=2]", "openvino")}
    assert [trace["name"] for trace in shown["resnet18 · openvino"]][-1] == "orin"
    assert "Batch size 4, orin, fp32, 2 threads." in page.inner_text("table.numbers caption"), (
        "what is alike needs no column"
    )
    values = page.locator("table.numbers tbody tr td:nth-child(3)").all_inner_texts()
    numbers = [float(text.replace(",", "")) for text in values]
    assert numbers == sorted(numbers, reverse=True)
    assert page.locator("th[aria-sort=descending]").count() == 1
    recorded = throughput(served, "orin", "resnet18", "openvino")[4]
    assert numbers[0] == pytest.approx(recorded, rel=1e-3)
    whole = throughput(served, "xeon", "resnet18", "openvino")[4]
    assert recorded == pytest.approx(whole * SLOWER)


def test_the_table_is_sorted_by_its_heads_and_leads_to_mlflow(served: Served, opened: Watched) -> None:
    page = opened.page
    head = page.get_by_role("button", name="device")
    head.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort=ascending]")
    column = page.locator("table.numbers tbody tr td:nth-child(2)").all_inner_texts()
    assert column == sorted(column)
    assert page.evaluate("() => document.activeElement.id") == "sort-device"
    page.get_by_label("run of openvino for resnet18 on xeon").click()
    page.wait_for_url("**/#/experiments/*/runs/*")
    page.get_by_text("resnet18 openvino fp32 on xeon").first.wait_for()
    page.go_back()
    settled(page)
    page.get_by_label("engine of openvino for resnet18 on xeon").click()
    page.wait_for_url("**/#/experiments/*/models/m-*")
    page.get_by_text("resnet18-openvino-fp32-b4").first.wait_for()


def test_what_is_wrong_is_said_and_can_be_put_right(served: Served, pages: Pages) -> None:
    watched = pages.open(f"{served.address}/ngraph/?device=mars")
    alert = watched.page.get_by_role("alert")
    alert.wait_for()
    assert "unknown device 'mars'" in alert.inner_text()
    watched.page.get_by_label("mars (not there)").uncheck()
    settled(watched.page)
    assert not alert.is_visible()
    # The browser itself complains of the answer 400, and of nothing else.
    assert all("400" in problem for problem in watched.problems)


def test_everything_has_a_name_and_charts_say_what_they_show(opened: Watched) -> None:
    page = opened.page
    assert page.evaluate(UNNAMED) == []
    labels = page.locator(".chart[role=img]").evaluate_all("charts => charts.map((one) => one.ariaLabel)")
    assert any("openvino: 250 at batch size 1" in label for label in labels)
    page.evaluate("() => document.body.focus()")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the results"


def test_the_page_follows_the_dark_scheme(served: Served, pages: Pages) -> None:
    colours = []
    for scheme in ("light", "dark"):
        watched = pages.open(f"{served.address}/ngraph/", color_scheme=scheme)
        settled(watched.page)
        colours.append(watched.page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
        assert watched.problems == []
    assert colours[0] != colours[1]


def test_recorded_names_cannot_become_markup(served: Served, pages: Pages) -> None:
    address = f"{served.address}/ngraph/?device=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
    watched = pages.open(address)
    watched.page.get_by_role("alert").wait_for()
    assert "<img" in watched.page.get_by_role("alert").inner_text()
    assert watched.page.locator("img[src=x]").count() == 0


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


def titles(view: View) -> list[str]:
    """What stands above the charts of a view: the names of their metrics."""
    return [chart["metricKey"] for chart in view.charts if chart["type"] in ("LINE", "BAR")]


def test_views_open_with_their_charts(served: Served, pages: Pages) -> None:
    experiment = served.where["view"].split("/experiments/")[1].split("/")[0]
    # In one window, so that all but the first find MLflow's scripts in its cache.
    page = pages.open(served.where["view"]).page
    page.get_by_text("resnet18", exact=True).first.wait_for()  # the only model has a view of its own
    # MLflow draws only those charts that can be seen.
    page.set_viewport_size({"width": 1500, "height": 3000})
    for view in views.VIEWS:
        page.goto(views.link(served.address, experiment, view.id))
        page.get_by_text(view.name, exact=True).first.wait_for()
        for title in titles(view):
            page.get_by_text(title, exact=True).first.wait_for(state="attached")
        page.locator(".js-plotly-plot").first.wait_for()
        assert page.get_by_text("resnet18 openvino fp32 on orin").count() > 0
        assert page.get_by_text("Something went wrong").count() == 0


def test_an_engine_shows_its_card(served: Served, pages: Pages) -> None:
    page = pages.open(f"{served.address}/ngraph/?device=xeon&compiler=openvino").page
    page.get_by_label("engine of openvino for resnet18 on xeon").click()
    page.get_by_role("heading", name="resnet18 with openvino on xeon").first.wait_for()
    page.get_by_text("float32 batch×3×224×224").first.wait_for()


def test_on_a_phone_tables_are_records_that_need_no_scrolling(opened: Watched) -> None:
    page = opened.page
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(SIDEWAYS) == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.evaluate(LENGTHEN)
    assert page.evaluate(SIDEWAYS) == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390, "a long label widens the page"
    title = page.locator("#table tbody td").first.evaluate("(one) => getComputedStyle(one, '::before').content")
    assert title == '"workload"'
