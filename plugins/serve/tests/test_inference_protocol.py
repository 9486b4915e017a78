"""Requests are read as the Open Inference Protocol says, and what is not one is refused in one line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph_serve import tensors
from mlflow_ngraph_serve.client import decode, encode
from mlflow_ngraph_serve.protocol import LENGTH_HEADER, Interface
from mlflow_ngraph_serve.refusal import LONGEST, Refusal

X = TensorSpec("x", "float32", ("batch", 2, 3))
IDS = TensorSpec("ids", "int8", ("batch", 4))
FLAGS = TensorSpec("flags", "bool", ("batch",))
INTERFACE = Interface("m", "1", (X, IDS, FLAGS), (TensorSpec("y", "float32", ("batch", 2)), FLAGS))
GOOD: dict[str, Any] = {
    "id": "a",
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2, 3], "data": [1, 2.5, -3, 4, 5, 6]},
        {"name": "ids", "datatype": "INT8", "shape": [1, 4], "data": [[1, -128, 127, 0]]},
        {"name": "flags", "datatype": "BOOL", "shape": [1], "data": [True]},
    ],
}


def changed(change: Any) -> bytes:
    content = json.loads(json.dumps(GOOD))
    change(content)
    return json.dumps(content).encode()


def test_json_is_read_flat_or_nested() -> None:
    question = INTERFACE.read(json.dumps(GOOD).encode(), None)
    assert (question.id, question.samples) == ("a", 1)
    x, ids, flags = question.arrays
    np.testing.assert_array_equal(x, np.array([[[1, 2.5, -3], [4, 5, 6]]], np.float32))
    np.testing.assert_array_equal(ids, np.array([[1, -128, 127, 0]], np.int8))
    assert [array.dtype for array in question.arrays] == [np.dtype("float32"), np.dtype("int8"), np.dtype("bool")]
    assert flags.tolist() == [True]
    assert question.outputs == (("y", False), ("flags", False))


@pytest.mark.parametrize("data", [2.5, [2.5]])
def test_an_input_without_axes_is_a_number(data: object) -> None:
    spec = TensorSpec("t", "float32", ())
    content = {"inputs": [{"name": "t", "datatype": "FP32", "shape": [], "data": data}]}
    (array,) = Interface("m", "1", (spec,), (spec,)).read(json.dumps(content).encode(), None).arrays
    assert (array.dtype, array.shape, array.item()) == (np.dtype("float32"), (), 2.5)
    body, headers = encode({"t": np.float32(2.5)})
    (array,) = Interface("m", "1", (spec,), (spec,)).read(body, headers[LENGTH_HEADER]).arrays
    assert (array.shape, array.item()) == ((), 2.5)


@pytest.mark.parametrize("data", ["2.5", True, None, {}, [[2.5, 1]]])
def test_what_is_no_number_is_none(data: object) -> None:
    spec = TensorSpec("t", "float32", ())
    content = {"inputs": [{"name": "t", "datatype": "FP32", "shape": [], "data": data}]}
    with pytest.raises(Refusal, match="input 't'"):
        Interface("m", "1", (spec,), (spec,)).read(json.dumps(content).encode(), None)


def test_inputs_may_come_in_any_order() -> None:
    question = INTERFACE.read(changed(lambda content: content["inputs"].reverse()), None)
    assert [array.shape for array in question.arrays] == [(1, 2, 3), (1, 4), (1,)]


@pytest.mark.parametrize("dtype", sorted(tensors.DATATYPES.values()))
def test_every_type_survives_the_way_as_bytes_and_as_json(dtype: str) -> None:
    spec = TensorSpec("t", dtype, ("batch", 3))
    interface = Interface("m", "1", (spec,), (spec,))
    kind = np.dtype(dtype).kind
    values = {"b": [True, False, True], "f": [0.5, -2, 1e3], "i": [1, -2, 100], "u": [1, 2, 200]}[kind]
    array = np.array([values], dtype)
    body, headers = encode({"t": array})
    question = interface.read(body, headers[LENGTH_HEADER])
    np.testing.assert_array_equal(question.arrays[0], array)
    assert question.outputs == (("t", True),)
    answer, said = interface.write(question, {"t": array})
    np.testing.assert_array_equal(decode(answer, said[LENGTH_HEADER])["t"], array)
    text = {"inputs": [{"name": "t", "datatype": tensors.datatype(dtype), "shape": [1, 3], "data": values}]}
    question = interface.read(json.dumps(text).encode(), None)
    np.testing.assert_array_equal(question.arrays[0], array)
    (output,) = json.loads(interface.write(question, {"t": array})[0])["outputs"]
    assert output == {"name": "t", "datatype": tensors.datatype(dtype), "shape": [1, 3], "data": array.ravel().tolist()}


def test_binary_and_json_may_be_mixed() -> None:
    def mix(content: Any) -> None:
        content["inputs"][1] = {
            "name": "ids", "datatype": "INT8", "shape": [1, 4], "parameters": {"binary_data_size": 4},
        }  # fmt: skip
        content["outputs"] = [{"name": "flags"}, {"name": "y", "parameters": {"binary_data": True}}]

    head = changed(mix)
    question = INTERFACE.read(head + bytes([1, 2, 255, 4]), str(len(head)))
    assert question.arrays[1].tolist() == [[1, 2, -1, 4]]
    body, headers = INTERFACE.write(question, {"y": np.ones((1, 2), np.float32), "flags": np.array([False])})
    end = int(headers[LENGTH_HEADER])
    flags, y = json.loads(body[:end])["outputs"]
    assert flags["data"] == [False]
    assert y["parameters"] == {"binary_data_size": 8}
    np.testing.assert_array_equal(np.frombuffer(body[end:], "<f4"), [1, 1])


def test_numbers_that_json_lacks_are_null() -> None:
    question = INTERFACE.read(json.dumps(GOOD).encode(), None)
    found = {"y": np.array([[np.nan, 2]], np.float32), "flags": np.array([True])}
    assert json.loads(INTERFACE.write(question, found)[0])["outputs"][0]["data"] == [None, 2.0]


def entry(index: int, **fields: Any) -> Any:
    return lambda content: content["inputs"][index].update(fields)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "inputs must be a list of objects"),
        (b'{"inputs": [1]}', "inputs must be a list of objects"),
        (changed(lambda content: content.update(id=3)), "id must be a string"),
        (changed(lambda content: content.update(parameters=[])), "parameters of the request must be an object"),
        (changed(lambda content: content.update(outputs=[])), "outputs must be a list"),
        (changed(lambda content: content.update(outputs=[{"name": "z"}])), "no output is called 'z'"),
        (changed(lambda content: content.update(outputs=[{"name": "y"}] * 2)), "asked for twice"),
        (changed(lambda content: content["inputs"].pop()), "input 'flags' is missing: the engine takes x, ids, flags"),
        (changed(lambda content: content["inputs"].append(content["inputs"][0])), "input 'x' is given twice"),
        (changed(entry(0, name="z")), "no input is called 'z'"),
        (changed(entry(0, name=["x"])), "no input is called"),
        (changed(entry(0, datatype="FP64")), "has datatype 'FP64', the engine takes FP32"),
        (changed(entry(0, shape=[1, 3, 2])), r"has shape \[1, 3, 2\], the engine takes \[1 or more, 2, 3\]"),
        (changed(entry(0, shape=[0, 2, 3], data=[])), "has shape"),
        (changed(entry(0, shape=[2, 2, 3])), r"data has shape \[6\]"),
        (changed(entry(0, shape=[10**30, 2, 3])), "data has shape"),
        (changed(entry(0, shape=[-1, 2, 3])), "must be a list of sizes"),
        (changed(entry(0, shape=[True, 2, 3])), "must be a list of sizes"),
        (changed(entry(0, shape="1,2,3")), "must be a list of sizes"),
        (changed(entry(0, data="abc")), "data must be a list"),
        (changed(entry(0, data=["1"] * 6)), "data must be numbers, for FP32"),
        (changed(entry(0, data=[True] * 6)), "data must be numbers, for FP32"),
        (changed(entry(0, data=[None] * 6)), "data must be numbers, for FP32"),
        (changed(entry(0, data=[[1, 2], [3]])), "data must be numbers"),
        (changed(entry(0, data=[1e39] * 6)), "out of the range of FP32"),
        (changed(entry(0, data=[10**400] * 6)), "out of the range of FP32"),
        (changed(entry(1, data=[1, 2, 3, 128])), "out of the range of INT8"),
        (changed(entry(1, data=[1, 2, 3, 1.0])), "must be whole numbers, for INT8"),
        (changed(entry(2, data=[1])), "must be true or false, for BOOL"),
        (changed(entry(2, shape=[2], data=[True, True])), "inputs have different batch sizes"),
        (changed(entry(0, parameters={"shared_memory_region": "r"})), "'shared_memory_region' of input 'x' is not served"),
        (changed(lambda content: content.update(outputs=[{"name": "y", "parameters": {"classification": 3}}])), "is not served"),
        (changed(lambda content: content.update(parameters={"sequence_id": 1})), "'sequence_id' of the request is not served"),
        (changed(entry(0, parameters=3)), "parameters of input 'x' must be an object"),
        (changed(entry(0, parameters={"binary_data_size": 24})), "either data or the parameter binary_data_size"),
        (changed(lambda content: content["inputs"][0].pop("data")), "either data or the parameter"),
        (json.dumps(GOOD).encode().replace(b"2.5", b"NaN"), "NaN is not JSON"),
        (changed(lambda content: content.update(parameters={"binary_data_output": 1})), "must be true or false"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(Refusal, match=said) as refusal:
        INTERFACE.read(body, None)
    assert refusal.value.status == 400
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("length", ["", "x", "-1", "+1", "1.5", " 5", "1_0", "٣", "9" * 5000, "100000"])
def test_a_length_that_cannot_be_is_refused(length: str) -> None:
    with pytest.raises(Refusal, match=LENGTH_HEADER):
        INTERFACE.read(json.dumps(GOOD).encode(), length)


@pytest.mark.parametrize(
    ("size", "content", "said"),
    [
        (4, b"123", "more than what follows the JSON"),
        (-4, b"1234", "more than what follows the JSON"),
        (4.0, b"1234", "more than what follows the JSON"),
        (4, b"12345", "1 bytes follow the JSON that belong to no input"),
        (3, b"123", "has 3 bytes, its shape needs 4"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(size: Any, content: bytes, said: str) -> None:
    def change(document: Any) -> None:
        document["inputs"][1].pop("data")
        document["inputs"][1]["parameters"] = {"binary_data_size": size}

    head = changed(change)
    with pytest.raises(Refusal, match=said):
        INTERFACE.read(head + content, str(len(head)))


def test_truth_is_one_or_zero() -> None:
    def change(document: Any) -> None:
        document["inputs"][2].pop("data")
        document["inputs"][2]["parameters"] = {"binary_data_size": 1}

    head = changed(change)
    with pytest.raises(Refusal, match="neither 0 nor 1"):
        INTERFACE.read(head + b"\x02", str(len(head)))


@pytest.mark.parametrize(("value", "status"), [(0, 200), (49, 200), (50, 422), (-1, 422), (2**32 + 3, 422)])
def test_integers_out_of_their_range_are_refused_before_the_engine(value: int, status: int) -> None:
    spec = TensorSpec("ids", "int64", ("batch",), high=50)
    interface = Interface("m", "1", (spec,), (X,), "int32")
    body, headers = encode({"ids": np.array([value])})
    if status == 200:
        assert interface.read(body, headers[LENGTH_HEADER]).samples == 1
        return
    with pytest.raises(
        Refusal, match=f"input 'ids' has values of {value} to {value}, the engine takes 0 to 49"
    ) as error:
        interface.read(body, headers[LENGTH_HEADER])
    assert (error.value.status, error.value.reason) == (status, "values")


@pytest.mark.parametrize("size", [10**4000, 10**4299])
def test_what_a_client_says_at_length_is_said_back_in_a_line(size: int) -> None:
    entry = {"name": "x", "datatype": "FP32", "shape": [size, 2, 3]}
    for given in ({**entry, "data": [1.0]}, {**entry, "parameters": {"binary_data_size": 0}}):
        with pytest.raises(Refusal, match="input 'x'") as error:
            INTERFACE.read(json.dumps({"inputs": [given]}).encode(), None)
        assert len(str(error.value)) <= LONGEST


def test_an_answer_without_the_binary_extension_is_read() -> None:
    outputs = [
        {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [1, None, 2.5, 3]},
        {"name": "n", "datatype": "INT64", "shape": [2], "data": [1, 2]},
    ]
    found = decode(json.dumps({"outputs": outputs}).encode(), None)
    np.testing.assert_array_equal(found["y"], np.array([[1, np.nan], [2.5, 3]], np.float32))
    assert (found["n"].dtype, found["n"].tolist()) == (np.dtype("int64"), [1, 2])


@pytest.mark.parametrize("length", [None, "20", "many"])
@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"",
        b"[]",
        b'{"answer": 1}',
        b'{"outputs": [{"name": "y", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}',
        b'{"outputs": [{"name": "y", "datatype": "INT8", "shape": [1], "data": [400]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]}1234',
    ],
)
def test_what_is_no_answer_is_told_in_one_line(body: bytes, length: str | None) -> None:
    with pytest.raises(EngineError, match=r"^this is no answer of the Open Inference Protocol: .*") as error:
        decode(body, length)
    assert len(str(error.value).splitlines()) == 1
