"""Recognise credentials: keep them from processes that need none, and out of texts that are recorded or shown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow_ngraph.addresses import HIDDEN, redacted, shown

_NAME = re.compile(
    r"(^|_)TOKEN(_|$)|(^|_)(AUTH|KEY|PAT|PG_?PASS|PASS|PW|JWT|PEM|DSN|COOKIE|CREDS?|SA_JSON)$|_PWD$|PASSW(OR)?D|PASSPHRASE|"
    r"SECRET|CREDENTIAL|WEBHOOK|(API|ACCESS|PRIVATE)_?KEY",
    re.IGNORECASE,
)
"""Names of variables and keywords whose values are secret."""
_SERVICE = re.compile(r"^(MLFLOW_TRACKING|AWS|AZURE|GOOGLE|DATABRICKS)_|^SSH_AUTH_SOCK$", re.IGNORECASE)
"""Variables that let a process in somewhere, though not all of them are secret."""
_PLAIN = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|TMPDIR|TEMP|TMP|HOSTNAME|COLUMNS|LINES|NO_COLOR|CC|CXX|VIRTUAL_ENV|"
    r"PYTORCH_NVML_BASED_CUDA_CHECK|CUBLAS_WORKSPACE_CONFIG)$|"
    r"(LC|XDG|LD|PYTHON|CONDA|CUDA|NVIDIA|NCCL|CUDNN|TENSORRT|OMP|KMP|OPENVINO|OV|ORT|TVM|TORCH|TORCHINDUCTOR|TRITON|NGRAPH|COV)_|PYTHON"
)
"""Variables of systems, interpreters and runtimes."""
_FORM = re.compile(
    r"(?:\bAKIA|\bASIA)[A-Z0-9]{16}\b|\b(?:gh[opsur]_|github_pat_|glpat-|hf_|xox[abprs]-|sk-)[\w-]{16,}|"
    r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
"""Forms of credentials of widespread services."""
_INTRODUCED = re.compile(
    r"""\b(authorization["']?[:=]\s*["']?(?:\w+\s+)?|bearer\s+|"""
    r"""(?:password|passwd|passphrase|secret|(?:access|auth|api|private)_?(?:key|token))["']?\s*[:=]\s*["']?)[^\s"',;&]{6,}""",
    re.IGNORECASE,
)
"""Words that introduce a credential in a text, with it."""
_SHORTEST = 4
"""Characters of a value that is looked for in texts: a shorter one is a switch."""
_SWITCHES = ("true", "false", "none", "null")

_named: set[str] = set()
"""Variables that workloads of this process take their keywords from."""


def name_variable(name: str) -> None:
    """Let children have a variable of the environment that a workload names; its value is secret from now on."""
    _named.add(name)


def is_name(name: str) -> bool:
    """True if a variable or keyword of this name is secret by its name."""
    return bool(_NAME.search(name))


def is_value(value: str) -> bool:
    """True if there is something in a text that has the form of a credential, or an address with a login."""
    return bool(_FORM.search(value) or _INTRODUCED.search(value)) or any(
        shown(part) != part for part in _addresses(value)
    )


def found(content: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Keys of texts in nested mappings that look like credentials."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from found(value, f"{place}{key}.")
        elif isinstance(value, str) and (is_name(key) or is_value(value)):
            yield f"{place}{key}"


def opens(name: str, value: str) -> bool:
    """True if a variable lets a process in somewhere, and no workload has named it."""
    return name not in _named and (bool(_SERVICE.search(name)) or is_name(name) or is_value(value))


def clean_environment() -> dict[str, str]:
    """The environment of this process without credentials, for a child that needs none."""
    return {name: value for name, value in os.environ.items() if not opens(name, value)}


def plain_environment() -> dict[str, str]:
    """Variables of the clean environment that systems, interpreters and runtimes read: all that an engine needs."""
    return {name: value for name, value in clean_environment().items() if _PLAIN.match(name) or name in _named}


def hidden(text: str, *words: str) -> str:
    """Remove credentials: logins of addresses, values of secret variables, and what has the form of a credential.

    ``words`` are arguments of a command, besides those of this process: addresses in them may have logins.
    """
    told = (*words, *sys.argv, *os.environ.values())
    with_login = [part for word in told for part in _addresses(word) if shown(part) != part]
    text = redacted(text, *with_login, secrets=_values())
    return _INTRODUCED.sub(rf"\1{HIDDEN}", _FORM.sub(HIDDEN, text))


def _values() -> Iterator[str]:
    for name, value in os.environ.items():
        # A path tells the place of a secret.
        if value.startswith("/") or len(value) < _SHORTEST or value.lower() in _SWITCHES:
            continue
        if name in _named or is_name(name):
            yield value


def _addresses(word: str) -> Iterator[str]:
    """Addresses in a word, in each reading: an address may hold any character that ends one elsewhere."""
    if "://" in word:
        for item in (word, *re.split(r"[\s,]+", word)):
            yield from (part for part in (item, item.partition("=")[2]) if "://" in part)
