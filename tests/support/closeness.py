"""Whether numbers are near enough to what they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def assert_close(found: NDArray[Any], expected: NDArray[Any], *, rtol: float, atol: float) -> None:
    """The same as numpy's own, which takes no array whose type is open, as the outputs of engines are."""
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
