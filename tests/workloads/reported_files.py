"""ONNX files as public reports and users bring them, each as small as it gets: ``write(folder)`` makes all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_node = helper.make_node
_ROWS = ("N", 6)


def write(folder: Path) -> None:
    """Write every file into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    for make in (_stored, _functions, _numbers, _control_flow, _coarse, _quantised, _decoder):
        make(folder, rng)


def _value(name: str, shape: Sequence[Any] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 18,
    ir: int = 10,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    **how: Any,
) -> None:
    held = [
        array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(np.asarray(array), name)
        for name, array in (constants or {}).items()
    ]
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, held)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=functions)
    onnx.save(model, path, **how)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _stored(folder: Path, rng: np.random.Generator) -> None:
    """Weights beside the file: in one file with a blank in its name, and in several with offsets below it."""
    nodes = [_node("MatMul", ["x", "w"], ["h"]), _node("Add", ["h", "b"], ["y"])]
    constants = {"w": _normal(rng, 64, 64), "b": _normal(rng, 64)}
    values = [_value("x", ["N", 64])], [_value("y", ["N", 64])]
    how: dict[str, Any] = {"save_as_external_data": True, "size_threshold": 0}
    _save(folder / "external.onnx", nodes, *values, constants, location="weights of it.bin", **how)
    _save(folder / "scattered.onnx", nodes, *values, constants, all_tensors_to_one_file=False, **how)
    path = folder / "below.onnx"
    _save(path, nodes, *values, constants)
    model = onnx.load(path)
    (folder / "parts").mkdir(exist_ok=True)
    content = b"in front"
    for tensor in model.graph.initializer:
        onnx.external_data_helper.set_external_data(tensor, "parts/w.bin", len(content), len(tensor.raw_data))
        content += tensor.raw_data
        tensor.ClearField("raw_data")
    (folder / "parts" / "w.bin").write_bytes(content)
    path.write_bytes(model.SerializeToString())


def _functions(folder: Path, rng: np.random.Generator) -> None:
    """Functions of a model's own, one in another, with attributes that are handed down."""
    gate = helper.make_function(
        "own",
        "Gate",
        ["a", "b"],
        ["o"],
        [_node("Sigmoid", ["b"], ["s"]), _node("Mul", ["a", "s"], ["o"])],
        [helper.make_opsetid("", 18)],
    )
    nodes = [_node("MatMul", ["x", "w"], ["u"]), _node("Gate", ["x", "u"], ["y"], domain="own")]
    values = [_value("x", _ROWS)], [_value("y", _ROWS)]
    _save(folder / "local_function.onnx", nodes, *values, {"w": _normal(rng, 6, 6)}, domains=["own"], functions=[gate])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    shift = helper.make_function(
        "own",
        "Shift",
        ["x"],
        ["y"],
        [_node("Constant", [], ["c"]), _node("Add", ["x", "c"], ["y"])],
        opsets[:1],
        ["by"],
    )
    _refer(shift.node[0], "value_float", "by")
    twice = helper.make_function(
        "own",
        "Twice",
        ["x"],
        ["y"],
        [
            _node("Shift", ["x"], ["m"], domain="own"),
            _node("Shift", ["m"], ["n"], domain="own", by=0.25),
            _node("Mul", ["n", "n"], ["y"]),
        ],
        opsets,
        ["amount"],
    )
    _refer(twice.node[0], "by", "amount")
    nodes = [
        _node("Twice", ["x"], ["t"], domain="own", amount=1.5),
        _node("Twice", ["t"], ["y"], domain="own", amount=-2.0),
    ]
    _save(folder / "nested.onnx", nodes, *values, domains=["own"], functions=[shift, twice])


def _refer(node: onnx.NodeProto, name: str, to: str) -> None:
    node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=to, type=onnx.AttributeProto.FLOAT))


def _numbers(folder: Path, rng: np.random.Generator) -> None:
    """Operators with attributes that are easily missed, NaN in a window, names that differ by little."""
    values = [_value("x", _ROWS)], [_value("y", _ROWS)]
    _save(
        folder / "reduce_noop.onnx",
        [
            _node("ReduceSum", ["x", "axes"], ["y"], noop_with_empty_axes=1, keepdims=1),
            _node("ReduceSumSquare", ["x", "axes"], ["z"], noop_with_empty_axes=1),
        ],
        values[0],
        [*values[1], _value("z", _ROWS)],
        {"axes": np.zeros(0, np.int64)},
    )
    _save(
        folder / "maxpool_nan.onnx",
        [_node("Log", ["x"], ["l"]), _node("MaxPool", ["l"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
        [_value("x", ["N", 2, 6, 6])],
        [_value("y", ["N", 2, 3, 3])],
    )
    reverse = _node("CumSum", ["x", "axis"], ["y"], reverse=1, exclusive=1)
    _save(folder / "cumrev.onnx", [reverse], *values, {"axis": np.int32(-1)})
    _save(
        folder / "cubic.onnx",
        [
            _node(
                "Resize",
                ["x", "", "scales"],
                ["y"],
                mode="cubic",
                cubic_coeff_a=-0.5,
                exclude_outside=1,
                coordinate_transformation_mode="half_pixel",
            )
        ],
        [_value("x", ["N", 2, 4, 4])],
        [_value("y", ["N", 2, 8, 8])],
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    )
    _save(
        folder / "tied.onnx",
        [
            _node("Gather", ["W", "ids"], ["e"]),
            _node("Transpose", ["W"], ["t"], perm=[1, 0]),
            _node("MatMul", ["e", "t"], ["y"]),
        ],
        [_value("ids", ["N", 6], TensorProto.INT64)],
        [_value("y", ["N", 6, 40])],
        {"W": _normal(rng, 40, 12)},
    )
    doubled = [_node("Mul", ["x", "two"], ["y"])]
    _save(folder / "old_ir.onnx", doubled, *values, {"two": np.full(6, 2, np.float32)}, opset=9, ir=3)
    labels = [_value("y", _ROWS), _value("labels", [3], TensorProto.INT64)]
    _save(folder / "constout.onnx", [_node("Relu", ["x"], ["y"])], values[0], labels, {"labels": np.array([4, 5, 6])})
    names = {"out": "Relu", "Out": "Neg", "out/0": "Abs", "out:0": "Exp"}
    _save(
        folder / "names.onnx",
        [_node(operator, ["x"], [name]) for name, operator in names.items()],
        values[0],
        [_value(name, _ROWS) for name in names],
    )
    _save(
        folder / "rmsrope.onnx",
        [
            _node("RMSNormalization", ["x", "g"], ["n"], axis=-1, epsilon=1e-5),
            _node("RotaryEmbedding", ["n", "c", "s", "p"], ["y"], num_heads=2),
        ],
        [_value("x", ["N", 4, 16]), _value("p", ["N", 4], TensorProto.INT64)],
        [_value("y", ["N", 4, 16])],
        {"g": _normal(rng, 16), "c": np.cos(_normal(rng, 10, 4)), "s": np.sin(_normal(rng, 10, 4))},
        opset=23,
    )
    _save(
        folder / "attn23.onnx",
        [_node("Attention", ["q", "k", "v", "m"], ["y"], q_num_heads=2, kv_num_heads=1, softcap=20.0)],
        [_value("q", ["N", 5, 8]), _value("k", ["N", 5, 4]), _value("v", ["N", 5, 4])],
        [_value("y", ["N", 5, 8])],
        {"m": np.tril(np.ones((5, 5), bool))},
        opset=23,
    )


def _control_flow(folder: Path, rng: np.random.Generator) -> None:
    """What PyTorch's form of a graph lacks: a branch on the data or on an input, an operator of another domain."""
    then = helper.make_graph([_node("Relu", ["x"], ["t"])], "then", [], [_value("t", None)])
    other = helper.make_graph([_node("Neg", ["x"], ["e"])], "other", [], [_value("e", None)])
    values = [_value("x", _ROWS)], [_value("y", _ROWS)]
    _save(
        folder / "branch.onnx",
        [
            _node("ReduceSum", ["x"], ["s"], keepdims=0),
            _node("Greater", ["s", "zero"], ["c"]),
            _node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        ],
        *values,
        {"zero": np.float32(0)},
    )
    weighted = helper.make_graph(
        [_node("MatMul", ["x", "w"], ["t"])],
        "then",
        [],
        [_value("t", None)],
        [numpy_helper.from_array(_normal(rng, 64, 64), "w")],
    )
    _save(
        folder / "weights_in_branch.onnx",
        [
            _node("ReduceSum", ["x"], ["s"], keepdims=0),
            _node("Greater", ["s", "zero"], ["c"]),
            _node("If", ["c"], ["y"], then_branch=weighted, else_branch=other),
        ],
        [_value("x", ["N", 64])],
        [_value("y", ["N", 64])],
        {"zero": np.float32(0)},
    )
    doubled = helper.make_graph([_node("Mul", ["x", "two"], ["t"])], "then", [], [_value("t", None)])
    less = helper.make_graph([_node("Sub", ["x", "two"], ["e"])], "other", [], [_value("e", None)])
    _save(
        folder / "ifin.onnx",
        [_node("If", ["flag"], ["z"], then_branch=doubled, else_branch=less), _node("Relu", ["z"], ["y"])],
        [*values[0], _value("flag", [], TensorProto.BOOL)],
        values[1],
        {"two": np.float32(2)},
    )
    _save(
        folder / "contrib.onnx",
        [
            _node("MatMul", ["x", "w"], ["u"]),
            _node("SkipLayerNormalization", ["u", "x", "g", "b"], ["y"], domain="com.microsoft", epsilon=1e-5),
        ],
        [_value("x", ["N", 5, 6])],
        [_value("y", ["N", 5, 6])],
        {"w": _normal(rng, 6, 6), "g": _normal(rng, 6), "b": _normal(rng, 6)},
        domains=["com.microsoft"],
    )


def _coarse(folder: Path, rng: np.random.Generator) -> None:
    """Half precision, weights of four bits, and types that engines are not given."""
    _save(
        folder / "half.onnx",
        [_node("MatMul", ["x", "W"], ["h"]), _node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)],
        [_value("x", ["N", 16], TensorProto.FLOAT16)],
        [_value("y", ["N", 8])],
        {"W": _normal(rng, 16, 8).astype(np.float16)},
    )
    four = helper.make_tensor("Q", TensorProto.INT4, [16, 8], rng.integers(-8, 8, 128).tolist())
    _save(
        folder / "int4.onnx",
        [
            _node("DequantizeLinear", ["Q", "S"], ["W"], axis=0, block_size=4),
            _node("MatMul", ["x", "W"], ["y"]),
        ],
        [_value("x", ["N", 16])],
        [_value("y", ["N", 8])],
        {"Q": four, "S": np.abs(_normal(rng, 4, 8)) * np.float32(0.1)},
        opset=21,
    )
    _save(
        folder / "textin.onnx",
        [
            _node(
                "TfIdfVectorizer",
                ["t"],
                ["y"],
                mode="TF",
                min_gram_length=1,
                max_gram_length=1,
                max_skip_count=0,
                ngram_counts=[0],
                ngram_indexes=[0, 1, 2],
                pool_strings=["red", "green", "blue"],
            )
        ],
        [_value("t", [6], TensorProto.STRING)],
        [_value("y", [3])],
    )
    _save(
        folder / "bf16in.onnx",
        [_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
        [_value("x", ["N", 16], TensorProto.BFLOAT16)],
        [_value("y", ["N", 16])],
    )


def _quantised(folder: Path, rng: np.random.Generator) -> None:
    """Pairs of QuantizeLinear and DequantizeLinear around convolutions, as tools write them."""
    nodes: list[onnx.NodeProto] = []
    held: dict[str, Any] = {}

    def pair(number: int, given: str, scale: float, zero: int) -> None:
        nodes.append(_node("QuantizeLinear", [given, f"s{number}", f"z{number}"], [f"q{number}"]))
        nodes.append(_node("DequantizeLinear", [f"q{number}", f"s{number}", f"z{number}"], [f"d{number}"]))
        held.update({f"s{number}": np.float32(scale), f"z{number}": np.uint8(zero)})

    def convolution(number: int, given: str, channels: tuple[int, int], scale: float) -> None:
        before, after = channels
        steps = (rng.random(after) * 0.01 + 0.002).astype(np.float32)
        held.update(
            {
                f"W{number}": rng.integers(-127, 128, (after, before, 3, 3)).astype(np.int8),
                f"sw{number}": steps,
                f"zw{number}": np.zeros(after, np.int8),
                f"b{number}": rng.integers(-500, 500, after).astype(np.int32),
                f"sb{number}": steps * np.float32(scale),
                f"zb{number}": np.zeros(after, np.int32),
            }
        )
        for kind in ("w", "b"):
            weight = f"{'W' if kind == 'w' else 'b'}{number}"
            nodes.append(
                _node(
                    "DequantizeLinear", [weight, f"s{kind}{number}", f"z{kind}{number}"], [f"{kind}f{number}"], axis=0
                )
            )
        nodes.append(_node("Conv", [given, f"wf{number}", f"bf{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))

    pair(0, "x", 0.03, 128)
    convolution(1, "d0", (4, 16), 0.03)
    nodes.append(_node("Relu", ["c1"], ["r1"]))
    pair(2, "r1", 0.25, 0)
    convolution(3, "d2", (16, 8), 0.25)
    pair(4, "c3", 2.0, 128)
    nodes.append(_node("GlobalAveragePool", ["d4"], ["y"]))
    outputs = [_value("y", ["N", 8, 1, 1]), _value("d4", ["N", 8, 8, 8])]
    _save(folder / "qdqconv.onnx", nodes, [_value("x", ["N", 4, 8, 8])], outputs, held, opset=17)


def _decoder(folder: Path, rng: np.random.Generator) -> None:
    """One step of a decoder with the cache as an input."""
    _save(
        folder / "step.onnx",
        [
            _node("Concat", ["past", "x"], ["k"], axis=1),
            _node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
            _node("MatMul", ["x", "t"], ["a"]),
            _node("Softmax", ["a"], ["p"], axis=-1),
            _node("MatMul", ["p", "k"], ["y"]),
        ],
        [_value("x", ["batch", 1, 8]), _value("past", ["batch_cache", "past_len", 8])],
        [_value("y", ["batch", 1, 8]), _value("k", ["batch", "total", 8])],
    )
