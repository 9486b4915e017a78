"""The suite that every compiler adapter must pass. Needs pytest, and PyTorch for the models.

Subclass it in a test module, and say the compiler's name and another valid value of every flag::

    from mlflow_ngraph_testing.contract import CompilerContract

    class TestMine(CompilerContract):
        compiler = "mine"
        other_flags: ClassVar = {"level": 1}

Small models (a CNN with a residual branch, one with two inputs and two outputs, a text encoder with integer inputs, one
with a fixed batch size, one with an operator that nobody knows) are prepared once for all adapters that start from the
same formats. Whatever imports a runtime happens in processes of its own.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.base", f"{__name__}.interface", f"{__name__}.engines", f"{__name__}.limits")

from mlflow_ngraph_testing.contract.engines import Engines  # noqa: E402 - pytest must know of its asserts before
from mlflow_ngraph_testing.contract.interface import Interface  # noqa: E402
from mlflow_ngraph_testing.contract.limits import Limits  # noqa: E402

__all__ = ["CompilerContract"]


class CompilerContract(Limits, Engines, Interface):
    """The contract of an adapter. A subclass sets the attributes of `mlflow_ngraph_testing.contract.base.Base`."""
