"""Weights of every kind are written, read back in place, and told apart by their digest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.workloads import state, weights

Make = Callable[[], torch.Tensor]


def buffers(**makes: Make) -> nn.Module:
    module = nn.Module()
    for name, make in makes.items():
        module.register_buffer(name, make(), persistent=not name.startswith("scratch"))
    return module


def parameter(make: Make) -> nn.Module:
    module = nn.Module()
    module.weight = nn.Parameter(make())
    return module


def of_type(dtype: torch.dtype) -> nn.Module:
    def numbers(*shape: int) -> torch.Tensor:
        return (torch.rand(shape) * 50 + 1).to(dtype)

    return buffers(some=lambda: numbers(3, 2), one=numbers, none=lambda: numbers(0, 2))


def views() -> nn.Module:
    base = torch.randn(6)
    return buffers(head=lambda: base[:4], tail=lambda: base[2:], turned=lambda: base.view(2, 3).t())


def dynamically_quantised(module: nn.Module, dtype: torch.dtype = torch.qint8) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(nn.Sequential(module, nn.ReLU()).eval(), {nn.Linear, nn.LSTM}, dtype=dtype)


def statically_quantised() -> nn.Module:
    from torch.ao import quantization as ao

    model = nn.Sequential(ao.QuantStub(), nn.Conv2d(3, 4, 3), ao.DeQuantStub()).eval()
    model.qconfig = ao.get_default_qconfig("x86")
    model = ao.prepare(model)
    model(torch.randn(1, 3, 8, 8))
    return ao.convert(model)


def per_tensor() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.randn(3, 2), 0.1 + float(torch.rand(())), 3, torch.qint8)


def per_channel() -> torch.Tensor:
    zeros = torch.zeros(3, dtype=torch.int64)
    return torch.quantize_per_channel(torch.randn(3, 2), torch.rand(3) + 0.1, zeros, 0, torch.qint8)


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=layout)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "COO": lambda: buffers(matrix=lambda: torch.randn(4, 5).to_sparse()),
    "COO of rows": lambda: buffers(matrix=lambda: torch.randn(4, 5).to_sparse(1)),
    "COO with an index twice": lambda: buffers(
        vector=lambda: torch.sparse_coo_tensor([[0, 0, 1]], torch.randn(3), (3,), check_invariants=True)
    ),
    "CSR": lambda: buffers(matrix=lambda: torch.randn(4, 6).to_sparse_csr()),
    "CSC": lambda: buffers(matrix=lambda: torch.randn(4, 6).to_sparse_csc()),
    "BSR": lambda: buffers(matrix=lambda: torch.randn(4, 6).to_sparse_bsr((2, 2))),
    "BSC": lambda: buffers(matrix=lambda: torch.randn(4, 6).to_sparse_bsc((2, 2))),
    "a sparse parameter": lambda: parameter(lambda: torch.randn(3, 3).to_sparse()),
    "nested": lambda: buffers(words=lambda: nested(torch.strided)),
    "jagged": lambda: buffers(words=lambda: nested(torch.jagged)),
    "quantised": lambda: buffers(table=per_tensor),
    "quantised by channel": lambda: buffers(table=per_channel),
    "conjugated and negated": lambda: buffers(
        conjugated=lambda: torch.randn(3, dtype=torch.complex64).conj(),
        negated=lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    ),
    "views of one memory": views,
    "expanded": lambda: buffers(
        rows=lambda: torch.randn(1, 4).expand(3, 4),
        one=lambda: torch.randn(()).expand(4),
        scratch=lambda: torch.randn(2),
    ),
    "scripted": lambda: torch.jit.script(nn.Linear(3, 2)),
    "dynamically quantised": lambda: dynamically_quantised(nn.Linear(4, 3)),
    "dynamically quantised to half": lambda: dynamically_quantised(nn.Linear(4, 3), torch.float16),
    "statically quantised": statically_quantised,
    "a quantised embedding": lambda: nn.Sequential(torch.ao.nn.quantized.Embedding(10, 12)),
    **{
        str(dtype): partial(of_type, dtype)
        for dtype in (
            *(torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.float64, torch.uint16),
            *(torch.complex32, torch.complex64, torch.complex128),
        )
    },
}


def made(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return KINDS[kind]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*KINDS])
def test_weights_of_every_kind_come_back(tmp_path: Path, kind: str) -> None:
    if kind == "a quantised embedding":  # it begins with nothing in particular
        original, other = made(kind, 0), made(kind, 1)
        original[0].set_weight(
            torch.quantize_per_channel(torch.ones(10, 12), torch.ones(10), torch.ones(10), 0, torch.quint8)
        )
    else:
        original, other = made(kind, 0), made(kind, 1)
    assert weights.digest(other) != weights.digest(original)
    weights.save(original, tmp_path / "weights.safetensors")
    weights.load(other, tmp_path / "weights.safetensors")
    assert weights.digest(other) == weights.digest(original)


@pytest.mark.filterwarnings("ignore")
def test_a_sparse_matrix_computes_with_what_was_loaded(tmp_path: Path) -> None:
    original, other = made("CSR", 0), made("CSR", 1)
    weights.save(original, tmp_path / "weights.safetensors")
    weights.load(other, tmp_path / "weights.safetensors")
    torch.testing.assert_close(other.matrix @ torch.ones(6), original.matrix @ torch.ones(6))


@pytest.mark.filterwarnings("ignore")
def test_weights_that_a_recurrent_layer_has_packed_must_be_those_that_it_had(tmp_path: Path) -> None:
    def packed(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return dynamically_quantised(nn.LSTM(4, 5))

    weights.save(packed(0), tmp_path / "weights.safetensors")
    assert weights.digest(packed(0)) != weights.digest(packed(1))
    weights.load(packed(0), tmp_path / "weights.safetensors")
    with pytest.raises(NGraphError, match="not built as it was when it was prepared"):
        weights.load(packed(1), tmp_path / "weights.safetensors")


@pytest.mark.parametrize(("shape", "dtype"), [((1,), torch.float32), ((4,), torch.float64)])
def test_what_was_saved_is_not_stretched_to_fit(tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weights.save(buffers(table=lambda: torch.zeros(shape, dtype=dtype)), tmp_path / "weights.safetensors")
    with pytest.raises(NGraphError, match=r"'table' is float\d\d\[\d\], and now float32\[4\]: .* not built as it was"):
        weights.load(buffers(table=lambda: torch.zeros(4)), tmp_path / "weights.safetensors")


@pytest.mark.filterwarnings("ignore")
def test_a_change_of_a_sparse_buffer_is_seen() -> None:
    module = made("COO", 0)
    before = state.snapshot(module)
    module.matrix._values().add_(1)
    assert state.changes(before, state.snapshot(module)).keys() == {"matrix"}


@pytest.mark.parametrize(
    "tensor", [torch.ones(1).expand(1), torch.ones(()), torch.ones(1, 1).as_strided((1, 1), (0, 0))]
)
def test_a_single_number_has_its_bytes_however_it_was_made(tensor: torch.Tensor) -> None:
    assert bytes(weights.octets(tensor.as_strided(tensor.shape, (0,) * tensor.ndim)).numpy()) == b"\x00\x00\x80\x3f"
