"""What the shell had set is named beside each figure that was measured with it."""

import io

from rich.console import Console

from mlflow_ngraph.analysis.compare import compare
from mlflow_ngraph.cli import tables
from mlflow_ngraph.execute.replay import fold
from mlflow_ngraph.tables import results, summary
from mlflow_ngraph.tracking.content import lane_content
from mlflow_ngraph.tracking.schema import Tag
from tests.support.script import Script

PRELOADED = {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}
TOLD = "LD_PRELOAD=/usr/lib/libjemalloc.so.2"


def scripted():
    """The baseline in a clean shell, the compiler in another one."""
    script = Script([1])
    script.measured("identity", 1, 10)
    return script.session(variables=PRELOADED).measured("fast", 1, 5)


def test_a_table_names_them_for_the_cells_of_that_session():
    frame = results.from_record(fold(scripted().events)).set_index("compiler")
    assert frame.loc["fast", "variables"] == TOLD
    assert frame["variables"].isna()["identity"]


def test_a_cell_that_goes_on_elsewhere_keeps_those_that_it_began_with():
    script = Script([1])
    script.session(variables=PRELOADED).measured("fast", 1, 5)
    script.session(variables={"LD_AUDIT": "/a.so"}).ready("fast", 1)
    script.events[-1]["continued"] = True
    script.finished("fast", 1)
    assert script.cell("fast", 1).environment == f"{TOLD} LD_AUDIT=/a.so"


def test_the_command_line_names_them():
    with io.StringIO() as stream:
        tables.show(Console(file=stream, width=200), summary.sheet(fold(scripted().events)))
        assert f"measured with {TOLD}" in stream.getvalue()


def test_a_comparison_names_them():
    frame = results.from_record(fold(scripted().events))
    table = compare(frame, rows=["label"], columns=["compiler"], metric="latency_p50_ms")
    told = {value["compiler"]: value["variables"] for value in table.about["values"]}
    assert told == {"fast": TOLD, "identity": None}


def test_mlflow_names_them():
    content = lane_content(fold(scripted().events), "fast")
    assert content.tags[Tag.VARIABLES] == TOLD
    assert f"measured with {TOLD}" in content.tags[Tag.NOTE]
    assert Tag.VARIABLES not in lane_content(fold(scripted().events), "identity").tags
