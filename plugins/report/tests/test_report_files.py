"""The files of a report: one page with everything in it, Markdown, figures and data; the same bytes for the same input.

In a real browser the page asks nobody for anything, and shows what it has.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_report import style
from mlflow_ngraph_report.blocks import Figure, Missing, Text
from mlflow_ngraph_report.build import build
from mlflow_ngraph_report.curves import log_ticks
from mlflow_ngraph_report.files import Drawn, draw, write
from tests.support import reported

if TYPE_CHECKING:
    from tests.support.browser import Pages

pytestmark = pytest.mark.long

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> & "
    "$\\frac{1}{2}$ | `code` [a](http://b)"
)
VOID = {"meta", "img", "br", "hr", "link", "input"}
SIZES = """elements => elements.map(element => {
  const box = element.getBoundingClientRect();
  return [element.id || element.closest('[id]').id, box.width, box.height];
})"""
SIDEWAYS = """
() => [...document.querySelectorAll(".scroll:has(table)")]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)
"""
"""The tables of which a part is out of sight."""
TITLE = "one => getComputedStyle(one, '::before').content"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Structure(HTMLParser):
    """Tags, ids, links and addresses of a page; complains about tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if "id" in found:
            self.ids.append(str(found["id"]))
        self.targets += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href")]
        assert not [name for name in found if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def structure(html: str) -> Structure:
    found = Structure()
    found.feed(html)
    assert not found.open
    return found


@pytest.fixture(scope="module")
def drawn(compilers: None) -> Drawn:
    """Every figure of the paper, which takes as long as a compiler."""
    return draw(build(reported.everything(("xeon",)), paper=True))


@pytest.fixture(scope="module")
def attacked(compilers: None) -> Drawn:
    """Everything that results name is HTML, Markdown and mathematics."""
    frame = reported.models(("xeon",), (1, 4))
    frame["label"] = frame["label"].replace("ResNet-18", HOSTILE)
    frame["family"] = frame["family"].replace("Swins", HOSTILE)
    frame["compiler_label"] = frame["compiler_label"].replace("openvino", f"openvino[{HOSTILE}]")
    frame["device"] = HOSTILE
    frame["study_id"] = HOSTILE
    bad = frame["label"].eq("DeiT-Base") & frame["batch"].eq(4)
    frame.loc[bad, "verdict"] = "failed"
    frame.loc[bad, "reason"] = HOSTILE
    return draw(build(frame, paper=True, title=HOSTILE))


@pytest.fixture
def page(drawn: Drawn, tmp_path: Path) -> str:
    write(drawn, tmp_path / "report.html")
    return (tmp_path / "report.html").as_uri()


@pytest.mark.usefixtures("compilers")
def test_the_page_has_everything_in_it(drawn: Drawn) -> None:
    page = drawn.html()
    found = structure(page)
    assert len(page.encode()) < 5_000_000
    assert len(found.ids) == len(set(found.ids))
    # nothing is fetched, and every link leads to a place in the page; a bar of colours is an image within it
    targets = [target for target in found.targets if not target.startswith("data:image/png;base64,")]
    assert {target[0] for target in targets} == {"#"}
    assert {target[1:] for target in targets} <= set(found.ids)
    assert "script" not in found.tags
    assert "url(http" not in page
    for block in drawn.report.blocks():
        assert block.key in found.ids
    figures = [block for block in drawn.report.blocks() if isinstance(block, Figure)]
    assert found.tags.count("svg") == len(figures) == 11
    assert found.tags.count("caption") == sum(isinstance(block, Sheet) for block in drawn.report.blocks())


def test_every_reference_within_a_figure_is_to_itself(drawn: Drawn) -> None:
    page = drawn.html()
    ids = set(structure(page).ids)
    references = re.findall(r"url\(#([^)]+)\)", page)
    assert references
    assert set(references) <= ids


def test_figures_follow_the_colours_of_the_page(drawn: Drawn) -> None:
    inside = style.inline(drawn.svg["f6"], "f6")
    assert "currentColor" in inside
    assert style.INK not in inside
    assert style.INK in drawn.svg["f6"]


@pytest.mark.usefixtures("compilers")
def test_names_from_results_are_text(attacked: Drawn, tmp_path: Path) -> None:
    page = attacked.html()
    tags = structure(page).tags
    assert "script" not in tags
    assert "img" not in tags
    assert "&lt;script&gt;" in page
    for text in attacked.svg.values():
        root = ET.fromstring(text)
        assert not [one for one in root.iter() if one.tag.endswith(("script", "image"))]
    # Markdown: no HTML, no table that is broken by a bar, no link
    text = attacked.files()["report.md"].decode()
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert "<script" not in plain.replace("\\<script", "")
    assert "](http://b)" not in plain.replace("\\](", "")
    write(attacked, tmp_path)


@pytest.mark.usefixtures("compilers")
def test_the_same_input_gives_the_same_bytes() -> None:
    frame = reported.everything(("xeon",))
    few = frame[frame["family"].isin(["Swins", "conv-block"]) & frame["batch"].isin([1, 4])]
    one, other = (draw(build(few)) for _ in range(2))
    assert len(one.svg) > 3
    assert one.files() == other.files()


def test_every_figure_and_table_is_a_file_too(drawn: Drawn, tmp_path: Path) -> None:
    paths = write(drawn, tmp_path / "out")
    assert paths[0].name == "report.html"
    for block in drawn.report.blocks():
        if isinstance(block, (Figure, Sheet)):
            data = pd.read_csv(tmp_path / "out" / "data" / f"{block.key}.csv")
            assert len(data) == len(block.data), block.key
        if isinstance(block, Figure):
            svg = (tmp_path / "out" / "figures" / f"{block.key}.svg").read_text()
            texts = [one.text for one in ET.fromstring(svg).iter() if one.tag.endswith("text")]
            assert len(texts) > 5, block.key
            png = (tmp_path / "out" / "figures" / f"{block.key}.png").read_bytes()
            assert png.startswith(b"\x89PNG")
            assert len(png) > 5000
    alone = write(drawn, tmp_path / "alone.html")
    assert [path.name for path in alone] == ["alone.html"]
    assert (tmp_path / "alone.html").read_bytes() == paths[0].read_bytes()


@pytest.mark.parametrize("name", ["report.html", "figures"])
def test_nothing_is_written_through_a_link(drawn: Drawn, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=f"{name} is a link: remove it"):
        write(drawn, tmp_path / "out")
    assert not (tmp_path / "precious").exists()


def test_the_numbers_of_the_page_are_those_of_the_data(drawn: Drawn) -> None:
    files = drawn.files()
    page = structure(files["report.html"].decode())
    data = pd.read_csv(io.BytesIO(files["data/t6.csv"]))
    for row in data.to_dict("records"):
        for band in ("b2_4", "b8_16"):
            shown = f"{row[f'throughput_{band}']:.2f}"
            ends = f"[{row[f'throughput_ci_low_{band}']:.2f}, {row[f'throughput_ci_high_{band}']:.2f}]"
            assert shown in page.texts
            markdown = files["report.md"].decode()
            assert shown in markdown
            assert ends in markdown.replace("\\", "")


def test_markdown_has_tables_and_pictures(drawn: Drawn) -> None:
    text = drawn.files()["report.md"].decode()
    assert "![" in text
    assert "(figures/f6.svg)" in text
    assert "(data/t7.csv)" in text
    for line in re.findall(r"^\|.*$", text, re.MULTILINE):
        assert line.endswith(" |")
    widths = [
        len(re.findall(r"(?<!\\)\|", line))
        for line in text.partition("Table 6")[2].splitlines()
        if line.startswith("| ")
    ]
    assert widths[0] == widths[1] == widths[2]


def test_what_is_missing_stands_at_the_end() -> None:
    report = build(reported.models(devices=("xeon",), batches=(1,)))
    missing = [block for block in report.blocks() if isinstance(block, Missing)]
    page = draw(report).html()
    for block in missing:
        assert f'<li id="{block.key}" class="missing">' in page
        assert f'<a href="#{block.key}">' not in page, "it is in nobody's way"
        assert block.reason.partition(",")[0] in page
    assert {"f5", "f7-conv", "t6", "t7", "t8"} <= {block.key for block in missing}
    assert "needs the study paper-blocks-mha" in page


def test_findings_are_there_with_their_commands(drawn: Drawn) -> None:
    report = build(reported.everything(("xeon",)), scope="--tracking-uri sqlite:///mine.db")
    (section,) = [one for one in report.sections if one.key == "findings"]
    assert any("slower than eager" in block.title for block in section.blocks)
    assert all(isinstance(block, Text) for block in section.blocks)
    commands = [block.command for block in section.blocks if isinstance(block, Text)]
    assert all("--tracking-uri sqlite:///mine.db" in command for command in commands)
    page = drawn.html()
    assert "mlflow-ngraph compare" in page
    assert "<summary>Evidence</summary>" in page


def test_no_results_are_refused() -> None:
    with pytest.raises(UsageError, match="no results to report on"):
        build(reported.models().iloc[:0])


def test_a_place_that_cannot_be_written_is_one_line(drawn: Drawn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write(drawn, tmp_path / "file" / "inside")


@pytest.mark.parametrize(
    ("low", "high"), [(0.87, 1.13), (0.95, 1.08), (0.012, 4.0), (0.4, 2.5), (1e-5, 1e5), (1.001, 1.004), (3, 3.01)]
)
def test_logarithmic_axes_have_a_few_round_ticks(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 3 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)


def test_nothing_is_asked_for_and_everything_is_shown(page: str, drawn: Drawn, pages: Pages) -> None:
    opened = pages.open(page, offline=True)
    assert opened.problems == []
    shown = opened.page
    blocks = drawn.report.blocks()
    sizes: dict[str, tuple[float, float]] = {
        key: (width, height) for key, width, height in shown.eval_on_selector_all("main article", SIZES)
    }
    for block in blocks:
        if not isinstance(block, Missing):  # those are lines of a list
            assert min(sizes[block.key]) > 40, block.key
    figures = [block for block in blocks if isinstance(block, Figure)]
    for block in figures:
        assert shown.eval_on_selector(f"#{block.key} svg", "element => element.getBoundingClientRect().height") > 100
        assert shown.locator(f"#{block.key} svg path").count() > 10, block.key
        assert shown.locator(f"#{block.key} svg text").count() > 5, block.key
    for block in blocks:
        if isinstance(block, Sheet):
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


def test_on_a_phone_tables_are_records_that_need_no_scrolling(page: str, pages: Pages) -> None:
    shown = pages.open(page).page
    shown.set_viewport_size({"width": 390, "height": 800})
    assert shown.evaluate(OVERFLOW) <= 0
    assert shown.evaluate(SIDEWAYS) == []
    assert shown.eval_on_selector("#glance td:nth-child(4)", TITLE) == '"speed-up"'


def test_text_from_results_runs_nothing(attacked: Drawn, tmp_path: Path, pages: Pages) -> None:
    write(attacked, tmp_path / "report.html")
    opened = pages.open((tmp_path / "report.html").as_uri())
    assert opened.problems == []
    assert opened.page.title() == " ".join(HOSTILE.split())
    assert opened.page.locator("main script, main img").count() == 0
    assert HOSTILE in opened.page.locator("#t4").inner_text()
