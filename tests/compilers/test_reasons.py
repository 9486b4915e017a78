import pytest

from mlflow_ngraph.compilers.reasons import errors_as_limits, operator, translated_errors
from mlflow_ngraph.errors import CompileError, UnsupportedError

OPENVINO = (
    "Exception from src/inference/src/cpp/core.cpp:84:\n"
    "Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp:151:\n"
    "FrontEnd API failed with OpConversionFailure:\nModel wasn't fully converted.\nSummary:\n"
    "-- No conversion rule found for operations: com.acme.Frobnicate\n\n"
)
ONNXRUNTIME = (
    "[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:Fatal error: "
    "com.acme:Frobnicate(-1) is not a registered function/op"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (OPENVINO, "com.acme.Frobnicate"),
        (ONNXRUNTIME, "com.acme:Frobnicate"),
        ("Error No Op registered for Frobnicate with domain_version of 18", "Frobnicate"),
        ("The following operators are not supported for frontend ONNX: Frobnicate, Det", "Frobnicate, Det"),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Det(11) node", "Det"),
        ("Type 'tensor(bfloat16)' of input parameter (x) of operator (Det) in node (n0) is invalid.", "Det"),
        ("\nUnknown builtin op: acme::frobnicate.\nCould not find any similar ops", "acme::frobnicate"),
        ("\nCould not export Python function call '_Sign'. Remove calls to Python functions before export.", "_Sign"),
        ("aten::_to_dense: attempted to run this operator with Meta tensors, but", "aten::_to_dense"),
        ("Protobuf parsing failed.", None),
    ],
)
def test_operators_are_found_in_the_runtimes_own_words(text: str, name: str | None) -> None:
    assert operator(RuntimeError(text)) == name


def test_an_operator_that_the_cause_names_is_found() -> None:
    error = RuntimeError("conversion failed")
    error.__cause__ = RuntimeError("No Op registered for Frobnicate with domain_version of 18")
    assert operator(error) == "Frobnicate"


def test_a_missing_operator_is_unsupported_and_anything_else_a_failure() -> None:
    with (
        pytest.raises(UnsupportedError, match=r"^openvino has no operator com\.acme\.Frobnicate$"),
        translated_errors("openvino"),
    ):
        raise RuntimeError(OPENVINO)
    with pytest.raises(CompileError, match=r"^tvm: KeyError: 'x'$"), translated_errors("tvm"):
        raise KeyError("x")


def test_verdicts_and_a_lack_of_memory_pass_unchanged() -> None:
    for error in (UnsupportedError("as it is"), MemoryError("as it is")):
        with pytest.raises(type(error), match=r"^as it is$"), translated_errors("tvm"):
            raise error


def test_a_limit_of_a_compiler_is_none_of_the_machine() -> None:
    with (
        pytest.raises(UnsupportedError, match=r"^tvm: KeyError: 'x'$"),
        translated_errors("tvm"),
        errors_as_limits("tvm"),
    ):
        raise KeyError("x")
    for error in (RuntimeError("std::bad_alloc"), OSError("No space left on device"), ImportError("libx.so")):
        with pytest.raises(CompileError), translated_errors("tvm"), errors_as_limits("tvm"):
            raise error
