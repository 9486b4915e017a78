"""Save, load and digest parameters and buffers. Imports torch: for child processes only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mlflow_ngraph.errors import NGraphError

_SPARSE: Mapping[torch.layout, tuple[str, ...]] = {
    # Not what is public: that insists on indices that are in order and stand once each.
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""Parts of sparse tensors, by layout."""
_BUILT = "the model is not built as it was when it was prepared"


def save(module: nn.Module, path: Path) -> None:
    """Write every parameter and buffer, also those that a state dict leaves out; tied ones once."""
    from safetensors.torch import save_file

    temporary = path.with_suffix(".tmp")
    # clones, because the format refuses tensors that share memory, such as views of one buffer
    save_file({name: part.clone().contiguous() for name, part in _dense(module)}, temporary)
    temporary.replace(path)


def load(module: nn.Module, path: Path) -> None:
    """Load saved parameters and buffers into a module of the same structure, in place."""
    from safetensors import safe_open

    with torch.no_grad(), safe_open(path, framework="pt") as content:
        saved = set(content.keys())

        def read(name: str, like: torch.Tensor) -> torch.Tensor:
            if name not in saved:
                raise NGraphError(f"{path} has no {name!r}: {_BUILT}")
            value: torch.Tensor = content.get_tensor(name)
            if (value.dtype, value.shape) != (like.dtype, like.shape):
                raise NGraphError(f"{path}: {name!r} is {_described(value)}, and now {_described(like)}: {_BUILT}")
            return value

        for name, tensor in _state(module):
            _fill(tensor, {part: read(_joined(name, part), memory) for part, memory in parts(tensor).items()})
        for prefix, owner in _packing(module):
            _pack(owner, prefix, read)


def digest(module: nn.Module) -> str:
    """sha256 of names, types, shapes and values of every parameter and buffer."""
    result = hashlib.sha256()
    for name, part in sorted(_dense(module), key=lambda item: item[0]):
        result.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
        result.update(octets(part).numpy().data)
    return result.hexdigest()


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes of a dense tensor in its own order of elements, without a copy where possible."""
    flat = tensor.contiguous().flatten()
    if flat.stride(0) != 1:  # a single number that was expanded counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Dense tensors that a tensor consists of, by name: itself, without a name, or such as indices and values.

    They share its memory, except quantised tensors and those of other libraries, which are copied.
    """
    tensor = tensor.detach()
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        held = {name: getattr(tensor, name) for name in inner}
    elif tensor.layout in _SPARSE:
        held = {name.lstrip("_"): getattr(tensor, name)() for name in _SPARSE[tensor.layout]}
    elif tensor.is_nested:
        held = {
            "sizes": tensor._nested_tensor_size(),
            "strides": tensor._nested_tensor_strides(),
            "offsets": tensor._nested_tensor_storage_offsets(),
            "values": tensor.values(),
        }
    elif tensor.is_quantized:
        return _of_quantised(tensor)
    else:
        return {"": _plain(tensor)}
    return {_joined(name, part): memory for name, one in held.items() for part, memory in parts(one).items()}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Strided memory without pending negation or conjugation."""
    if tensor.is_mkldnn:
        return tensor.to_dense()
    if tensor.is_complex():
        # The format has one type of complex numbers only.
        return torch.view_as_real(tensor.resolve_conj()).resolve_neg()
    return tensor.resolve_neg()


def _of_quantised(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    numbers = {"": tensor.int_repr()}
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scale, zero = tensor.q_scale(), tensor.q_zero_point()
        return {**numbers, "scale": torch.tensor(scale, dtype=torch.float64), "zero_point": torch.tensor(zero)}
    return {
        **numbers,
        "scale": tensor.q_per_channel_scales(),
        "zero_point": tensor.q_per_channel_zero_points(),
        "axis": torch.tensor(tensor.q_per_channel_axis()),
    }


def _quantised(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Inverse of `_of_quantised`."""
    numbers, scale, zero = values[""], values["scale"], values["zero_point"]
    if "axis" not in values:
        return torch._make_per_tensor_quantized_tensor(numbers, float(scale), int(zero))
    return torch._make_per_channel_quantized_tensor(numbers, scale, zero, int(values["axis"]))


def _fill(tensor: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
    """Copy parts into a tensor."""
    if tensor.is_quantized:
        tensor.copy_(_quantised(values))
    elif tensor.is_mkldnn:
        tensor.copy_(values[""].to_mkldnn())
    elif tensor.is_conj() or tensor.is_neg():  # its parts are no part of it
        tensor.copy_(torch.view_as_complex(values[""]) if tensor.is_complex() else values[""])
    else:
        for name, memory in parts(tensor).items():
            _written_once(memory).copy_(_written_once(values[name], memory))


def _written_once(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Tensor without elements that share one place in memory: torch refuses to write to them."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, (tensor if like is None else like).stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _dense(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Everything that a module computes with, as dense tensors with unique names."""
    for name, tensor in _state(module):
        # Nothing lies below the name of a tensor: a module would have it, and names are given once.
        yield from ((_joined(name, part), memory) for part, memory in parts(tensor).items())
    for prefix, owner in _packing(module):
        for name, tensor in _packed(owner, prefix):
            yield from ((_joined(name, part), memory) for part, memory in parts(tensor).items())


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _packing(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that store weights in other forms, such as those that torch.ao quantises."""
    for name, part in module.named_modules():
        own = type(part)._save_to_state_dict, type(part).get_extra_state
        if own != (nn.Module._save_to_state_dict, nn.Module.get_extra_state) and not _is_scripted(part):
            yield f"{name}." if name else "", part


def _packed(owner: nn.Module, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that a module adds to a state dict besides parameters and buffers."""
    for name, value in _put_by(owner, prefix).items():
        for index, leaf in enumerate(_leaves(value)):
            if isinstance(leaf, torch.Tensor):
                yield f"{name}.{index}", leaf


def _leaves(value: Any) -> Iterator[Any]:
    """Values in a state dict entry, also inside TorchScript objects, which pack recurrent weights."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.ScriptObject):
            yield from _leaves(leaf.__getstate__())
        else:
            yield leaf


def _put_by(owner: nn.Module, prefix: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    owner._save_to_state_dict(kept, prefix, True)
    own = {f"{prefix}{name}" for name in (*owner._parameters, *owner._buffers)}
    return {name: value for name, value in kept.items() if name not in own}


def _pack(owner: nn.Module, prefix: str, read: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """Load saved tensors into a module through its state dict."""
    content = {}
    for name, value in _put_by(owner, prefix).items():
        leaves = [
            _read(leaf, f"{name}.{index}", read) if isinstance(leaf, torch.Tensor) else leaf
            for index, leaf in enumerate(_leaves(value))
        ]
        if any(isinstance(leaf, torch.ScriptObject) for leaf in tree_leaves(value)):
            # Such an object cannot be written to: a model that is built in the same way has the same one.
            _require_equal(name, list(_leaves(value)), leaves)
            content[name] = value
        else:
            content[name] = tree_unflatten(leaves, tree_flatten(value)[1])
    errors: list[str] = []
    owner._load_from_state_dict(content, prefix, {"version": owner._version}, False, [], [], errors)
    if errors:
        raise NGraphError(f"{prefix.rstrip('.')} does not take its saved weights: {'; '.join(errors)}")


def _require_equal(name: str, built: Sequence[Any], saved: Sequence[Any]) -> None:
    for one, other in zip(built, saved, strict=True):
        if isinstance(one, torch.Tensor) and not torch.equal(one, other):
            raise NGraphError(f"{name} has other weights than it had when it was prepared: {_BUILT}")


def _read(leaf: torch.Tensor, name: str, read: Callable[[str, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Read a saved tensor that is like another one."""
    values = {part: read(_joined(name, part), memory) for part, memory in parts(leaf).items()}
    if leaf.is_quantized:
        return _quantised(values)
    copy = leaf.detach().clone()
    _fill(copy, values)
    return copy


def _is_scripted(part: nn.Module) -> bool:
    return isinstance(part, torch.jit.ScriptModule)


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if part else name


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
