"""Engine packages on disk: read and write manifests, check all files against them, read and add signatures.

``manifest.json`` has the sha256 of every other file, and ``manifest.json.sha256`` that of the manifest. An attacker
could change a file, the manifest and that digest together. So a caller that gets a package from elsewhere gives
`open_package` the digest that came by another way: on a tracking server it is the tag ``ngraph.manifest_sha256`` of the
LoggedModel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph import documents
from mlflow_ngraph.compilers.spec import FILE as SPEC
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines import model_files, signing
from mlflow_ngraph.engines.files import damage, irregular_entry
from mlflow_ngraph.engines.manifest import (
    BESIDE,
    DIGEST_FILE,
    ENGINE_DIRECTORY,
    FILE,
    MAX_BYTES,
    SIGNATURE_FILE,
    Manifest,
    is_of_mlflow,
)
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.text import harmless

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class Package:
    """A package whose manifest has been read."""

    directory: Path
    manifest: Manifest
    digest: str
    """sha256 of the manifest, which stands for the whole package."""

    @property
    def engine(self) -> Path:
        return self.directory / ENGINE_DIRECTORY


def require(directory: Path) -> None:
    """Check that a directory has a manifest or its digest. Raises `UsageError` otherwise."""
    if not directory.is_dir():
        raise UsageError(f"there is no engine package at {directory}")
    if not any((directory / name).is_file() for name in (FILE, DIGEST_FILE)):
        raise UsageError(f"{directory} is no engine package: it has no {FILE}")


def require_name(source: object) -> None:
    """Check that a directory or an address is not empty: as a path that is the current directory. Raises `UsageError`."""
    if source == "":
        raise UsageError("expected the directory or the address of an engine, found an empty text")


def require_outside(place: Path) -> None:
    """Check that no directory above ``place`` is a package: what is written there would damage it. Raises `UsageError`."""
    for above in place.expanduser().resolve().parents:
        if (above / DIGEST_FILE).is_file():
            raise UsageError(f"{place} is inside of the engine package {above}: choose another place")


def open_package(directory: Path, digest: str | None = None) -> Package:
    """Read a package and check every file.

    Raises `EngineError` for the first file that is missing, changed, or not in the manifest.
    """
    package = read_manifest(directory, digest)
    check_files(package)
    return package


def read_manifest(directory: Path, digest: str | None = None) -> Package:
    """Read a manifest and compare it with its digest; other files are not read.

    Raises `EngineError` if it is missing, changed or invalid.
    """
    path = directory / FILE
    if not directory.is_dir():
        raise EngineError(f"there is no engine package at {directory}")
    content = _content(path)
    checksum = hashlib.sha256(content).hexdigest()
    beside = _content(directory / DIGEST_FILE)
    if beside.decode(errors="replace") != digest_line(checksum):
        raise EngineError(f"{path} has changed: its sha256 is not the one in {DIGEST_FILE}, or that file has changed")
    if digest is not None and digest != checksum:
        raise EngineError(f"{path} is not the manifest that was logged: its sha256 is {checksum}, not {digest}")
    return Package(directory, Manifest.parse(content, str(path)), checksum)


def check_files(package: Package) -> None:
    """Compare the engine's files with the digests of the manifest, and what they and MLflow's files say with the rest of it.

    Raises `EngineError` for the first file that is missing, changed, no plain file, or unknown, or that contradicts the
    manifest.
    """
    directory, manifest = package.directory, package.manifest
    if entry := irregular_entry(directory.resolve()):
        raise EngineError(f"{entry}: a package has files of its own")
    if problem := damage(package.engine, manifest.engine_files()):
        raise EngineError(problem)
    size = sum((package.engine / path).stat().st_size for path in manifest.engine_files())
    if size != manifest.size_bytes:
        raise EngineError(f"{package.engine} has {size} bytes, and its manifest says {manifest.size_bytes}")
    check_spec(package.engine, manifest)
    known = {*BESIDE, *manifest.files}
    entries = sorted(directory.rglob("*"))
    for path in (path for path in entries if not path.is_dir()):
        name = path.relative_to(directory).as_posix()
        if name not in known and not is_of_mlflow(name):
            raise EngineError(f"{harmless(str(path))} is not in the manifest of the package")
    model_files.check(directory, manifest)
    if empty := next((path for path in entries if path.is_dir() and not any(path.iterdir())), None):
        raise EngineError(f"{harmless(str(empty))} is an empty directory, of which the manifest knows nothing")


def check_spec(directory: Path, manifest: Manifest) -> None:
    """Compare the specification in an engine's directory with the manifest's. Raises `EngineError` if they differ."""
    if EngineSpec.read(directory) != manifest.spec:
        raise EngineError(f"{directory / SPEC} contradicts the manifest")


def read_signature(directory: Path) -> bytes | None:
    """Read the signature of a package; None where there is none. Raises `EngineError` if it is unreadable."""
    path = directory / SIGNATURE_FILE
    if not path.exists() and not path.is_symlink():
        return None
    if path.stat().st_size > signing.MAX_BYTES:
        raise EngineError(f"{path} is no signature: it is too large")
    return _content(path)


def sign(package: Package, key: Ed25519PrivateKey) -> str:
    """Sign the manifest, replace any other signature, and return the fingerprint of the key.

    Raises `EngineError` if the manifest has changed since it was read.
    """
    content = _content(package.directory / FILE)
    if hashlib.sha256(content).hexdigest() != package.digest:
        raise EngineError(f"{package.directory / FILE} has changed since it was read")
    place = package.directory / SIGNATURE_FILE
    place.unlink(missing_ok=True)  # it might be a link
    place.write_bytes(signing.sign(content, key))
    return signing.fingerprint(signing.public_blob(signing.public_text(key)))


def write_manifest(directory: Path, manifest: Manifest) -> str:
    """Write manifest and digest into a package, and return the digest."""
    content = manifest.to_json().encode()
    digest = hashlib.sha256(content).hexdigest()
    (directory / FILE).write_bytes(content)
    (directory / DIGEST_FILE).write_text(digest_line(digest), encoding="utf-8")
    return digest


def digest_line(digest: str) -> str:
    """Content of ``manifest.json.sha256``."""
    return f"{digest}  {FILE}\n"


def _content(path: Path) -> bytes:
    if path.is_symlink():
        raise EngineError(f"{path} is a link: a package has files of its own")
    try:
        return documents.content(path, MAX_BYTES)
    except OSError as error:
        raise EngineError(f"{path} is not readable: {error.strerror}") from None
