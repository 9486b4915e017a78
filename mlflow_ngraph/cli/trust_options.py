"""The options ``--sign``, ``--trust`` and ``--run``, and the reading of a private key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

F = TypeVar("F", bound=Callable[..., Any])


def sign_option(command: F) -> F:
    """The option ``--sign``; `load` reads what it names."""
    return click.option(
        "--sign", type=click.Path(dir_okay=False, path_type=Path), metavar="KEY", help="Sign it with this OpenSSH key."
    )(command)


def trust_option(command: F) -> F:
    """The option ``--trust``; `mlflow_ngraph.engines.trust.load` reads what it names."""
    return click.option(
        "--trust",
        metavar="FILE|any",
        help="Whom to trust; by default $NGRAPH_TRUST, else trust.yaml in the home directory, else anybody.",
    )(command)


def run_option(command: F) -> F:
    """The option ``--run``; see `mlflow_ngraph.release.consent`."""
    return click.option(
        "--run",
        is_flag=True,
        help="Let an engine that is a program run although no rule allows it; that is remembered.",
    )(command)


def load(path: Path) -> Ed25519PrivateKey:
    """A private key, else raise `UsageError`; a person is asked for its passphrase where it has one."""
    from mlflow_ngraph.engines.signing import load_key

    return load_key(path, lambda: str(click.prompt(f"Passphrase of {path}", hide_input=True, err=True)))
