"""The ready-made views in MLflow's own pages, and the card of an engine."""

from __future__ import annotations

import pytest

from mlflow_ngraph.tracking import views
from mlflow_ngraph.tracking.views import View
from tests.support.browser import Pages
from tests.support.served import Served

pytestmark = pytest.mark.usefixtures("compilers")


def titles(view: View) -> list[str]:
    """What stands above the charts of a view: the names of their metrics."""
    return [chart["metricKey"] for chart in view.charts if chart["type"] in ("LINE", "BAR")]


@pytest.mark.parametrize("view", views.VIEWS, ids=lambda view: view.id)
def test_views_open_with_their_charts(served: Served, pages: Pages, view: View) -> None:
    experiment = served.where["view"].split("/experiments/")[1].split("/")[0]
    page = pages.open(views.link(served.address, experiment, view.id)).page
    # MLflow draws only those charts that can be seen.
    page.set_viewport_size({"width": 1500, "height": 3000})
    page.get_by_text(view.name, exact=True).first.wait_for()
    for title in titles(view):
        chart = page.get_by_text(title, exact=True).first
        chart.wait_for(state="attached")
    page.locator(".js-plotly-plot").first.wait_for()
    assert page.get_by_text("resnet18 openvino fp32 on orin").count() > 0
    assert page.get_by_text("Something went wrong").count() == 0


def test_the_link_of_a_study_opens_the_first_view(served: Served, pages: Pages) -> None:
    page = pages.open(served.where["view"]).page
    page.get_by_text("Device comparison", exact=True).first.wait_for()


def test_an_engine_shows_its_card(served: Served, pages: Pages) -> None:
    page = pages.open(f"{served.address}/ngraph/?device=xeon&compiler=openvino").page
    page.get_by_label("engine of openvino for resnet18 on xeon").click()
    page.get_by_role("heading", name="resnet18 with openvino on xeon").first.wait_for()
    page.get_by_text("float32 batch×3×224×224").first.wait_for()
