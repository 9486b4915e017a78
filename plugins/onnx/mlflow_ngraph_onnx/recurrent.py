"""ONNX's LSTM, GRU and RNN in torch, computed step by step instead of by torch's own layers.

Torch's own have other gates, and no exporter takes all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from mlflow_ngraph_onnx.values import Node, operator

State = tuple[Tensor, ...]
"""State between two steps: the output, and an LSTM's cell."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_ATTRIBUTES = "activations direction hidden_size input_forget layout linear_before_reset"


@operator("LSTM", "GRU", "RNN", attributes=_ATTRIBUTES)
def _recurrent(
    node: Node,
    value: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    output: Tensor | None = None,
    cell: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    directions = weight.shape[0]
    if lengths is not None or peepholes is not None or node.get("layout", 0) or node.get("input_forget", 0):
        raise NotImplementedError(f"{node.operator} with sequence lengths, peepholes, layout or input_forget")
    if node.get("activations", _ACTIVATIONS[node.operator] * directions) != _ACTIVATIONS[node.operator] * directions:
        raise NotImplementedError(f"{node.operator} with other activations than its own")
    hidden = recurrence.shape[-1]
    nothing = value.new_zeros(directions, value.shape[1], hidden)
    before = [nothing if given is None else given for given in (output, cell)[: 2 if node.operator == "LSTM" else 1]]
    both = value.new_zeros(directions, 2 * _GATES[node.operator] * hidden) if bias is None else bias
    sequences, lasts = [], []
    for place in range(directions):
        backwards = node.get("direction", "forward") == "reverse" or place > 0
        steps = value.flip(0) if backwards else value
        step = _step(node, recurrence[place], both[place].chunk(2))
        state, made = tuple(given[place] for given in before), []
        for inputs in functional.linear(steps, weight[place]).unbind(0):
            state = step(inputs, state)
            made.append(state[0])
        sequence = torch.stack(made)
        sequences.append(sequence.flip(0) if backwards else sequence)
        lasts.append(state)
    return torch.stack(sequences, 1), *(torch.stack(parts) for parts in zip(*lasts, strict=True))


def _step(node: Node, recurrence: Tensor, biases: tuple[Tensor, ...]) -> Callable[[Tensor, State], State]:
    """Run one step, from the products of its inputs and the previous state."""
    of_input, of_state = biases

    def lstm(inputs: Tensor, state: State) -> State:
        output, cell = state
        enter, leave, forget, new = (inputs + of_input + functional.linear(output, recurrence, of_state)).chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(cell), cell

    def gru(inputs: Tensor, state: State) -> State:
        (output,), size = state, recurrence.shape[-1]
        given = inputs + of_input
        gates = given[..., : 2 * size] + functional.linear(output, recurrence[: 2 * size], of_state[: 2 * size])
        update, reset = torch.sigmoid(gates).chunk(2, -1)
        last, last_bias = recurrence[2 * size :], of_state[2 * size :]
        if node.get("linear_before_reset", 0):
            kept = reset * functional.linear(output, last, last_bias)
        else:
            kept = functional.linear(reset * output, last, last_bias)
        new = torch.tanh(given[..., 2 * size :] + kept)
        return ((1 - update) * new + update * output,)

    def rnn(inputs: Tensor, state: State) -> State:
        return (torch.tanh(inputs + of_input + functional.linear(state[0], recurrence, of_state)),)

    return {"LSTM": lstm, "GRU": gru, "RNN": rnn}[node.operator]
