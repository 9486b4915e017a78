import pytest

from mlflow_ngraph.compilers.registry import COMPILERS, create
from mlflow_ngraph.errors import FlagError
from mlflow_ngraph_testing.fake import FakeCompiler


@pytest.mark.usefixtures("fake_compiler")
def test_a_third_party_registers_a_compiler_by_an_entry_point() -> None:
    assert COMPILERS.names()[-1] == "fake"
    assert COMPILERS.get("fake") is FakeCompiler
    with pytest.raises(FlagError, match=r"compiler 'fake': behaviour: .*'ok'"):
        create("fake", {"behaviour": "odd"})
