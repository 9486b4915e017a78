"""The page in a real browser, on a real server, with results that the package has recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.browser import Pages, Watched
from tests.support.served import SLOWER, Served

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.usefixtures("compilers")

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
    assert "Speed-up over identity, batch size 1" in page.inner_text("#map-title")
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
    values = page.locator("table.numbers tbody tr td:nth-child(5)").all_inner_texts()
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
    page.get_by_text("resnet18-openvino-fp32-b1").first.wait_for()


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
