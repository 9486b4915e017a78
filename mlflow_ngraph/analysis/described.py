"""A named tuple of a data frame of answers and the facts that hold for all of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Described(NamedTuple):
    """A table with facts about all of it. They are no ``attrs``, which pandas copies deeply for every slice."""

    table: pd.DataFrame
    about: dict[str, Any]
