"""All verbs say the same of the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.random_results import OBJECTIVES, disagreements, table


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=3, deadline=None)
@example(seed=69)
@example(seed=401)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_two_verbs_disagree(objective: str, seed: int) -> None:
    assert list(disagreements(table(np.random.default_rng(seed)), objective)) == []
