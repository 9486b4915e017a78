"""The page in a real browser: it asks nobody for anything, and shows what it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlflow_ngraph.analysis.report.blocks import Figure, Missing, Table
from mlflow_ngraph.analysis.report.build import build
from mlflow_ngraph.analysis.report.files import Drawn, draw, write
from tests.support import reported

if TYPE_CHECKING:
    from tests.support.browser import Pages

SIZES = """elements => elements.map(element => {
  const box = element.getBoundingClientRect();
  return [element.id || element.closest('[id]').id, box.width, box.height];
})"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return draw(build(reported.everything(("xeon",)), paper=True))


@pytest.fixture
def page(drawn: Drawn, tmp_path: Path) -> str:
    write(drawn, tmp_path / "report.html")
    return (tmp_path / "report.html").as_uri()


def test_nothing_is_asked_for_and_everything_is_shown(page: str, drawn: Drawn, pages: Pages) -> None:
    opened = pages.open(page, offline=True)
    assert opened.problems == []
    shown = opened.page
    blocks = drawn.report.blocks()
    sizes: dict[str, tuple[float, float]] = {
        key: (width, height) for key, width, height in shown.eval_on_selector_all("main article", SIZES)
    }
    for block in blocks:
        assert min(sizes[block.key]) > 40, block.key
    figures = [block for block in blocks if isinstance(block, Figure)]
    for block in figures:
        assert shown.eval_on_selector(f"#{block.key} svg", "element => element.getBoundingClientRect().height") > 100
        assert shown.locator(f"#{block.key} svg path").count() > 10, block.key
        assert shown.locator(f"#{block.key} svg text").count() > 5, block.key
    for block in blocks:
        if isinstance(block, Table):
            assert shown.locator(f"#{block.key} tbody tr").count() == len(block.rows) > 0
            assert shown.locator(f"#{block.key} caption").inner_text().strip()
    # Results without a server do not describe their machines, and nothing disturbed these.
    assert [block.key for block in blocks if isinstance(block, Missing)] == ["machines", "noise"]
    assert shown.evaluate(OVERFLOW) <= 0


def test_contents_lead_to_places(page: str, pages: Pages) -> None:
    # Else the page glides to a place, and is not there yet.
    shown = pages.open(page, reduced_motion="reduce").page
    links = shown.locator("nav a")
    assert links.count() > 30
    shown.get_by_role("link", name="Table 6: throughput and CPU use by family", exact=True).click()
    top = shown.eval_on_selector("#t6", "element => element.getBoundingClientRect().top")
    assert -200 < top < 1000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_can_be_read_in_light_and_dark(page: str, pages: Pages, scheme: str) -> None:
    shown = pages.open(page, color_scheme=scheme).page
    colours: dict[str, Any] = shown.evaluate(
        """() => {
          const level = text => text.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3;
          const label = document.querySelector('#f6 svg text');
          return {
            paper: level(getComputedStyle(document.body).backgroundColor),
            ink: level(getComputedStyle(document.body).color),
            label: level(getComputedStyle(label).fill),
          };
        }"""
    )
    assert abs(colours["paper"] - colours["ink"]) > 150
    assert abs(colours["paper"] - colours["label"]) > 120
    assert (colours["paper"] > 200) == (scheme == "light")


def test_a_narrow_window_scrolls_tables_and_not_the_page(page: str, pages: Pages) -> None:
    shown = pages.open(page).page
    shown.set_viewport_size({"width": 420, "height": 800})
    assert shown.evaluate(OVERFLOW) <= 0


def test_text_from_results_runs_nothing(tmp_path: Path, pages: Pages) -> None:
    frame = reported.models(devices=("xeon",), batches=(1, 2))
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    frame["label"] = frame["label"].replace("ResNet-18", hostile)
    target = tmp_path / "report.html"
    write(draw(build(frame)), target)
    opened = pages.open(target.as_uri())
    assert opened.problems == []
    assert opened.page.title() == "Neural graph compilers: report"
    assert opened.page.locator("main script, main img").count() == 0
    assert hostile in opened.page.locator("#t4").inner_text()
