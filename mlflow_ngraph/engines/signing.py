"""Sign manifests of engine packages, and so every file whose digest they hold, and verify signatures.

Keys are Ed25519 keys as ``ssh-keygen -t ed25519`` makes them, and a signature is as ``ssh-keygen -Y sign`` writes it
(OpenSSH's PROTOCOL.sshsig). It lies in the manifest's directory as ``manifest.json.sig`` and covers the manifest's
exact bytes, so anybody can check it without this package:

    ssh-keygen -Y check-novalidate -n mlflow-ngraph -s manifest.json.sig < manifest.json
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import EngineError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NAMESPACE = "mlflow-ngraph"
"""Namespace, so that signatures for other purposes do not count."""
KEY_TYPE = "ssh-ed25519"
MAX_BYTES = 16 << 10
"""No signature is larger, and no private key."""

_MAGIC = b"SSHSIG"
_VERSION = 1
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_LINE = 70
_HASHES = {"sha512": hashlib.sha512, "sha256": hashlib.sha256}
_HASH = "sha512"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


def load_key(path: Path, passphrase: Callable[[], str] | None = None) -> Ed25519PrivateKey:
    """Load a private key of ``ssh-keygen``; ``passphrase`` is called only for a protected key.

    Raises `UsageError` if it cannot be read, is not an Ed25519 key, or the passphrase is missing or wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    path = path.expanduser()
    try:
        with path.open("rb") as stream:  # which may be a pipe, as of a vault
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise UsageError(f"cannot read the key {path}: it has more than {MAX_BYTES} bytes")
    try:
        try:
            key = load_ssh_private_key(content, password=None)
        except TypeError:  # what cryptography raises for a protected key without a passphrase
            if passphrase is None:
                raise UsageError(f"the key {path} is protected by a passphrase: sign with the verb sign") from None
            key = load_ssh_private_key(content, password=passphrase().encode())
    except UnsupportedAlgorithm as error:
        raise UsageError(
            f"the key {path} cannot be opened here ({error}): pip install bcrypt, "
            f"or sign with ssh-keygen -Y sign -n {NAMESPACE} -f {path} manifest.json"
        ) from None
    except ValueError:
        raise UsageError(f"{path} is no private key of OpenSSH, or the passphrase is wrong") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is no Ed25519 key: make one with ssh-keygen -t ed25519")
    return key


def public_text(key: Ed25519PrivateKey) -> str:
    """Public half of a key: ``ssh-ed25519 AAAA...``."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def public_blob(text: str) -> bytes:
    """Decode a line such as ``ssh-ed25519 AAAA... comment`` into OpenSSH's wire format.

    Raises `ValueError` for any other line.
    """
    words = text.split()
    if len(words) < 2 or words[0] != KEY_TYPE:
        raise ValueError(f"expected a public key such as '{KEY_TYPE} AAAA...', found {text[:40]!r}")
    try:
        blob = base64.b64decode(words[1], validate=True)
        _raw_key(blob)
    except (binascii.Error, EngineError):
        raise ValueError(f"the public key {text[:40]!r} is cut off or damaged") from None
    return blob


def fingerprint(blob: bytes) -> str:
    """Fingerprint of a public key as OpenSSH shows it: ``SHA256:...``."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).rstrip(b"=").decode()


def sign(content: bytes, key: Ed25519PrivateKey) -> bytes:
    """Content of ``manifest.json.sig`` for the content of ``manifest.json``."""
    blob = public_blob(public_text(key))
    raw = key.sign(_signed(content, _HASH))
    parts = (NAMESPACE.encode(), b"", _HASH.encode(), _string(KEY_TYPE.encode()) + _string(raw))
    whole = _MAGIC + struct.pack(">I", _VERSION) + b"".join(_string(part) for part in (blob, *parts))
    text = base64.b64encode(whole).decode()
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join([_BEGIN, *lines, _END, ""]).encode()


def signer(content: bytes, signature: bytes) -> bytes:
    """Verify a signature, and return the signer's public key in OpenSSH's wire format.

    `mlflow_ngraph.engines.trust` decides about the key's holder.

    Raises `EngineError` if the signature is damaged, was made for another purpose, or does not match the content.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    blob, raw, algorithm = _parsed(signature)
    try:
        Ed25519PublicKey.from_public_bytes(_raw_key(blob)).verify(raw, _signed(content, algorithm))
    except InvalidSignature:
        raise EngineError(f"the signature by {fingerprint(blob)} is not one of this manifest") from None
    return blob


def _signed(content: bytes, algorithm: str) -> bytes:
    """Signed blob: the digest of the content and the purpose."""
    parts = (NAMESPACE.encode(), b"", algorithm.encode(), _HASHES[algorithm](content).digest())
    return _MAGIC + b"".join(_string(part) for part in parts)


def _parsed(signature: bytes) -> tuple[bytes, bytes, str]:
    whole = _unarmoured(signature)
    if not whole.startswith(_MAGIC) or whole[len(_MAGIC) : len(_MAGIC) + 4] != struct.pack(">I", _VERSION):
        raise EngineError("the signature is not one of OpenSSH, or of another version")
    blob, namespace, _, algorithm, wrapped = _strings(whole[len(_MAGIC) + 4 :], 5)
    if namespace != NAMESPACE.encode():
        raise EngineError(f"the signature was made for {namespace.decode(errors='replace')!r}, not for {NAMESPACE!r}")
    if algorithm.decode(errors="replace") not in _HASHES:
        raise EngineError(f"the signature is over an unknown digest: {algorithm.decode(errors='replace')!r}")
    kind, raw = _strings(wrapped, 2)
    if kind != KEY_TYPE.encode() or len(raw) != _SIGNATURE_BYTES:
        raise EngineError("the signature is not by an Ed25519 key")
    return blob, raw, algorithm.decode()


def _unarmoured(signature: bytes) -> bytes:
    lines = signature[: MAX_BYTES + 1].decode("ascii", errors="replace").split()
    text = " ".join(lines)
    if len(signature) > MAX_BYTES or not text.startswith(_BEGIN) or not text.endswith(_END):
        raise EngineError("the signature is cut off, or none at all")
    try:
        return base64.b64decode(text.removeprefix(_BEGIN).removesuffix(_END).replace(" ", ""), validate=True)
    except binascii.Error:
        raise EngineError("the signature is damaged") from None


def _raw_key(blob: bytes) -> bytes:
    kind, raw = _strings(blob, 2)
    if kind != KEY_TYPE.encode() or len(raw) != _KEY_BYTES:
        raise EngineError("the signature is not by an Ed25519 key")
    return raw


def _string(part: bytes) -> bytes:
    return struct.pack(">I", len(part)) + part


def _strings(content: bytes, count: int) -> list[bytes]:
    """Parse ``count`` length-prefixed strings."""
    strings, rest = [], content
    for _ in range(count):
        if len(rest) < 4 or len(rest) - 4 < (size := struct.unpack(">I", rest[:4])[0]):
            raise EngineError("the signature is damaged")
        strings.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    if rest:
        raise EngineError("the signature is damaged")
    return strings
