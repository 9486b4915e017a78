"""Answers of the worker are declared once: dataclasses that become one have the same fields."""

from dataclasses import fields

import pytest

from mlflow_ngraph.devices.sensors import Change
from mlflow_ngraph.execute import answers
from mlflow_ngraph.execute.verifying import Verification
from mlflow_ngraph.measure.loop import Slice
from mlflow_ngraph.measure.open_loop import Served
from mlflow_ngraph.parity import Parity


@pytest.mark.parametrize(
    ("made_from", "answer", "others"),
    [
        (Verification, answers.VerifyAnswer, {"load_s"}),
        (Parity, answers.ParityFields, set()),
        (Change, answers.MachineFields, set()),
        (Slice, answers.SliceAnswer, {"settle_s", "peak_bytes", "resident_bytes", "machine", "stopped_s"}),
        (
            Served,
            answers.ArrivalsAnswer,
            {"servers", "machine", "page_faults", "settle_s", "peak_bytes", "resident_bytes", "stopped_s"},
        ),
    ],
)
def test_an_answer_has_the_fields_of_its_source(made_from, answer, others):
    assert {field.name for field in fields(made_from)} == set(answer.__annotations__) - others
