"""Ed25519 keys as ``ssh-keygen`` makes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mlflow_ngraph.engines import signing


def write_key(path: Path) -> str:
    """Write a new private key, and return the line of its public half."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    return signing.public_text(key)


@pytest.fixture
def signing_key(tmp_path: Path) -> Path:
    """A private key in a file, with its public half beside it."""
    path = tmp_path / "id_ed25519"
    path.with_suffix(".pub").write_text(write_key(path) + " alice@here\n")
    return path
