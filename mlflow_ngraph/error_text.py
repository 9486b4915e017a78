"""Format third-party exceptions as a one-line reason, with the operator and the line of the model's code."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from mlflow_ngraph.credentials import hidden
from mlflow_ngraph.entry_points import CONVERTER, module_of
from mlflow_ngraph.errors import EngineError, NGraphError
from mlflow_ngraph.torchvision_hook import FITTING

LONGEST = 300
"""Characters of a reason."""
_LONGEST_LINE = 80
"""Characters of a line of code in it."""
_LONGEST_MESSAGE = 20_000
"""Characters of a message that are read: a compiler of C++ writes megabytes."""

_NO_NEWS = ("Error", "Exception", "Fail", "InductorError", "InternalError", "RuntimeError")
"""Types that say nothing beyond what the message says."""

_REWRITTEN: tuple[tuple[str, str], ...] = (
    # Terminals: colours.
    (r"\x1b\[[0-9;]*m", ""),
    # Python: what stands before the last line of a quoted traceback.
    (r"(?s)^.*\(most recent call last\):.*\n(?=[\w.]*(?:Error|Exception)\b)", ""),
    (r"^builtins\.|^RuntimeError: ", ""),
    # Torchvision: its operators were built for another torch.
    (
        r"(?s)^.*(?:Couldn't load custom C\+\+ ops|run 'torchvision::|operator torchvision::\w+ does not exist).*",
        f"torchvision was built for another torch: {FITTING}",
    ),
    # Lists.
    (r"(?m)^\s*--? ", ""),
    # Compilers and linkers of C++: the first of their errors is the cause of the others.
    (r"(?ms)\A.*?^(?:\S*/)?((?:\S+: )?(?:fatal )?error: [^\n]+|ld: [^\n]+)$.*\Z", r"\1"),
    # PyTorch: advice, and the stack in C++.
    (r"(?s)\nException raised from .*", ""),
    (r"(?s)\nconsider using data-dependent friendly APIs.*", ""),
    (r" \(unhinted: .*?\)\.", ""),
    (r" +\(Size-like symbols: .*?\)", ""),
    (r"(?s)\n*The (?:following call raised this error|error above occurred when calling).*", ""),
    (r"(?s)\n*(?:Set TORCH\w+|You can suppress this exception|from user code:|Developer debug context:).*", ""),
    (r"(?:For (?:more|extended) [^\n.,]+, )(?:run with|see|also add) \S+[^\n.]*(?:\.|$)", ""),
    (r"\. You may have run into this message while using an operator with PT2.*", ""),
    (r" If you're using mark_dynamic.*| See https://\S+ .*| This is an internal miniz error.*", ""),
    (r"(?s)\n(?:Suggested fixes:|While executing %).*", ""),
    # torch.onnx
    (r"<OpOverload\(op='([\w.]+)', overload='\w+'\)>", r"\1"),
    (r" Failure message: No decompositions registered for the \S+ input", ""),
    (r"\. See the stack trace for more information.*", ""),
    # TorchInductor: the operator, and not twice what was wrong with it.
    (r"(?s)^(\w+: )(.*?)\n\s+target: (\S+).*", r"\1\3: \2"),
    # TorchScript: what is around the line that it marks.
    (r'(?s):?\s*File "[^"]+", line \d+\n.*<--- HERE.*', ""),
    (r"(?s)^(Tracer cannot infer type of ).*\n:", ""),
    # ONNX Runtime: places in its source code, and what it was doing.
    (r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", ""),
    (r"Load model from .*? failed: ?", ""),
    (r"Non-zero status code returned while running (\w+) node\. Name:('.*?') Status Message: ", r"\1 node \2: "),
    (r"(?<!\S)\S+\.(?:cc|h):\d+ (?:[\w:~<>,*& ]+\([^\n]*?\)(?: const)? |\w+ )", ""),
    (r"(?:(?<=: )|^)[^\n:]+ was false\. ", ""),
    (r"This is an invalid model\. ", ""),
    # OpenVINO: its checks, and the operators that they belong to.
    (r"(?m)(?:^|(?<=: ))(?:Exception from|Check '.*' failed at) \S+:\d+:$", ""),
    (r"(?m)^While validating ONNX node '.*?': *", ""),
    (r"(?m)^\S+ with a message:\s+(?=While validating node)", ""),
    (r"(?m)^(\S+) with a message:", r"\1:"),
    (r"(?m)^While validating node '(?:opset\d+::)?(.*?)(?: -> .*?)?' with friendly_name .*:$", r"\1:"),
    (r"(?m)^Shape inference input shapes .*$|^Loading input model$", ""),
    (r"FrontEnd API failed with \w+:\s*(?:Model wasn't fully converted\.)?(?: Failed operations detailed log:)?", ""),
    (r"(?m)^Conversion is failed for: .*$|^Summary:$", ""),
    (r"opset\d+::", ""),
    # TVM
    (r"Check failed: .*? (?:is false|(\(\S+ vs\. \S+\))) ?: ", r"\1 "),
    (r"\n# Metadata omitted\. .*? to show it\.", ""),
    (r'metadata\["ir\.GenericConst"\]\[\d+\]', "a constant"),
    (r'ir\.Op\(.*?name="([^"]+)".*?support_level=\d+\)', r"\1"),
    (r"\bT\.int64\((\d+)\)", r"\1"),
    (r"(?s)\n*Command line: .*", ""),
)
"""Wrappers of runtimes around their messages, with replacements."""

_ABOUT = (
    re.compile(r"Error when translating node .*?target=torch\.ops\.(\w+\.\w+)"),
    re.compile(r"Error converting operator (\w+)"),
    re.compile(r"Failed deserializing node Node\(target='torch\.ops\.(\w+\.\w+)"),
)
"""Messages of exceptions that name the operator."""

_MARKED = re.compile(r'File "([^"]+)", line (\d+)(?:, in (\w+))?\n(?:(?!\s*File ").*\n)*?(.+)\n[ \t]*~+[ \t]*<--- HERE')
_QUOTED = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n[ \t]+(\S.*)')
"""Places in a message: file, line, function, code."""
_NOT_THE_MODEL = re.compile(r"^code/__torch__|/torch/|^<")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\"(),]+/)+")
"""Folders of an absolute path."""
_MACHINERY = ("torch", "torchvision", "sympy", "numpy", "mlflow_ngraph", module_of(CONVERTER))
"""Packages whose functions a model calls, or that call it."""


def one_line(error: BaseException) -> str:
    """Format the root cause of an error in at most `LONGEST` characters, without credentials and text that is not about the model.

    The operator comes first, where an exception in the chain names it, then the exception's type, where that says
    anything. The line of the model's own code comes last. Errors of this package are shown unchanged.
    """
    if isinstance(error, NGraphError):
        return hidden(str(error))
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return hidden(_ended(error))
    links = causes(error)
    place = next((line for link in reversed(links) if (line := _quoted(str(link)) or _raised(link))), "")
    return hidden(f"{_shortened(_words(links), LONGEST - len(place))}{place}")


def for_strangers(error: BaseException) -> str:
    """Format an error for people elsewhere, in at most `LONGEST` characters: no folder of this machine, no line of code.

    Where an engine has failed these are the runtime's own words.
    """
    runtime = error.__cause__ if isinstance(error, EngineError) else None
    text = str(runtime or error) if isinstance(runtime or error, NGraphError) else _words(causes(runtime or error))
    return _shortened(_FOLDERS.sub("", hidden(" ".join(text.split()))), LONGEST)


def _words(links: Sequence[BaseException]) -> str:
    """The message of the last of a chain of errors, with the operator and the type where they say anything."""
    last = links[-1]
    text = _shortened(str(last).strip(), _LONGEST_MESSAGE)
    for pattern, left in _REWRITTEN:
        text = re.sub(pattern, left, text)
    text = _trimmed(" ".join(text.split()))
    kind = type(last).__name__
    if not text:
        text = kind
    elif kind not in _NO_NEWS and not re.match(r"[\w.]*(Error|Exception): ", text):
        text = f"{kind}: {text}"
    about = next((match[1] for link in links for pattern in _ABOUT if (match := pattern.search(str(link)))), "")
    return _trimmed(f"{about}: {text}") if about and about not in text else text


def _ended(error: SystemExit | KeyboardInterrupt) -> str:
    """Describe code that ends or interrupts its process."""
    what = "it ended the process" if isinstance(error, SystemExit) else "it interrupted the process"
    words = " ".join(str(error).split())
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code:
        return f"{what} with code {error.code}"
    return f"{what}: {_shortened(words, LONGEST)}" if words not in ("", "None", "0") else f"{what} without a word"


def causes(error: BaseException) -> list[BaseException]:
    """The chain of causes of an error, the last one last."""
    links = [error]
    while (cause := links[-1].__cause__) is not None and cause not in links:
        links.append(cause)
    return links


def _trimmed(text: str) -> str:
    return re.sub(r"(?:[\s:;,]|with a message)+$", "", text).lstrip(" :;,")


def _shortened(text: str, longest: int) -> str:
    """Cut the middle of a text that is too long: the cause may stand at either end."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 5].rstrip()} ... {_trimmed(text[-end:])}"


def _quoted(text: str) -> str:
    """The place in the model's code that a message quotes: a marked one, else the innermost."""
    text = _shortened(text, _LONGEST_MESSAGE)
    marked = [place for place in _MARKED.findall(text) if not _NOT_THE_MODEL.search(place[0])]
    others = [place for place in _QUOTED.findall(text) if not _NOT_THE_MODEL.search(place[0])]
    return _place(*(marked[:1] or others[-1:])[0]) if marked or others else ""


def _raised(error: BaseException) -> str:
    """The innermost line of the model's own code in a traceback."""
    for frame, line in reversed(list(_in_model(error))):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _MACHINERY:
            code = frame.f_code
            return _place(code.co_filename, line, code.co_name, linecache.getline(code.co_filename, line))
    return ""


def _in_model(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    inside = False
    for frame, line in traceback.walk_tb(error.__traceback__):
        inside = inside or frame.f_code.co_name == "forward"
        if inside:
            yield frame, line


def _place(file: str, line: int | str, function: str, code: str) -> str:
    inside = f" in {function}" if function else ""
    return f"{inside} at {Path(file).name}:{line}: {_shortened(_trimmed(code.strip()), _LONGEST_LINE)}"
