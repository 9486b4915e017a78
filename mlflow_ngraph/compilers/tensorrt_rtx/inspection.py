"""Parse the builder's list of layers, because the engine inspector itself needs the engine's GPU."""

from __future__ import annotations

import re
from typing import Any

_LAYER = re.compile(
    r"^Name: (?P<Name>.*?), LayerType: (?P<LayerType>\w*), Inputs: .*, Outputs: (?P<outputs>\[.*?\]), "
    r"TacticName: (?P<TacticName>[^,]*), StreamId: \d+, Metadata: ?(?P<Metadata>.*)$"
)
_FORM = re.compile(r"Datatype: (?P<type>\w+), Format: (?P<format>\([^)]*\))")
_BETWEEN_NODES, _IN_JSON = "\x1f", "\x1e"
"""What stands between the nodes of a layer, here and in the inspector's JSON."""


def information(listing: str) -> dict[str, Any]:
    """The layers in the inspector's JSON form, parsed from the builder's log."""
    return {"Layers": [_layer(match) for line in listing.splitlines() if (match := _LAYER.match(line))]}


def _layer(match: re.Match[str]) -> dict[str, Any]:
    layer: dict[str, Any] = {name: match[name] for name in ("Name", "LayerType", "TacticName")}
    forms = [f"{form['type']} {form['format']}" for form in _FORM.finditer(match["outputs"])]
    layer["Outputs"] = [{"Format/Datatype": form} for form in forms]
    layer["Metadata"] = match["Metadata"].replace(_BETWEEN_NODES, _IN_JSON)
    return layer
