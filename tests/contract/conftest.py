"""The contract suite asserts in a module of the package, which pytest does not rewrite by itself."""

import pytest

pytest.register_assert_rewrite("mlflow_ngraph.testing.contract")
