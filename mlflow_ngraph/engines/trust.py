"""Load the user's trust rules about servers and signers (``trust.yaml``), and check sources and packages by them.

Digests show that a package is the one that was logged, not that its author can be trusted. An engine is a program to
the runtime that loads it, and often native code. Without the file every source is trusted, as far as digests go.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from mlflow_ngraph import addresses, documents
from mlflow_ngraph import home as home_directory
from mlflow_ngraph.engines import signing
from mlflow_ngraph.engines.files import exposed
from mlflow_ngraph.engines.manifest import FILE as MANIFEST
from mlflow_ngraph.engines.package import Package, read_signature
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.validation import explain

FILE = "trust.yaml"
VARIABLE = "NGRAPH_TRUST"
"""Names another file, or ``any``, where no option does."""
ANY = "any"
"""In place of a file: no rules, whatever there is in the home directory."""
_OTHER_ENDING = re.compile(r"trust\.ya?ml", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Source(_Part):
    """Rule about a source of engines."""

    uri: str
    """A tracking server, or ``file:///directory`` for packages on disk. ``*`` stands for anything in the name of the
    server or in the path; a path means what is below it as well. ``*`` alone is every source."""
    trust: Literal["allowed", "signed", "refused"]
    """``signed`` wants a signature by one of the signers."""

    def fits(self, uri: str) -> bool:
        """True if the rule applies to an address."""
        if self.uri == "*":
            return True
        wanted, given = _parts(self.uri), _parts(uri)
        below = f"{wanted[2].rstrip('/')}/*"
        return all(map(_matches, given[:2], wanted[:2])) and any(
            _matches(given[2], path) for path in (wanted[2], below)
        )


class Rules(_Part):
    """Content of ``trust.yaml``."""

    sources: tuple[Source, ...] = (Source(uri="*", trust="signed"),)
    """The first one that fits decides. What none fits is refused. Without any, everything needs a signature."""
    signers: Mapping[str, str] = {}
    """Public keys by the names of who holds them, as in ``id_ed25519.pub``: ``ssh-ed25519 AAAA...``."""

    @field_validator("signers")
    @classmethod
    def _are_keys(cls, signers: Mapping[str, str]) -> Mapping[str, str]:
        for text in signers.values():
            signing.public_blob(text)
        return signers

    def source_of(self, uri: str) -> Source | None:
        """First rule about a source; None where there is none."""
        return next((rule for rule in self.sources if rule.fits(uri)), None)

    def name_of(self, key: bytes) -> str | None:
        return next((name for name, text in self.signers.items() if signing.public_blob(text) == key), None)


EVERYTHING = Rules(sources=(Source(uri="*", trust="allowed"),))
"""Default rules."""


@dataclass(frozen=True)
class Trusted:
    """Reason why a package is trusted."""

    source: str
    """Address without credentials."""
    key: str | None
    """Fingerprint of the key that signed it, such as ``SHA256:...``; None where nobody has."""
    signer: str | None
    """Name of the signer in the rules."""
    by_rule: bool
    """False where nobody has written rules, and so everybody is trusted."""

    @property
    def found(self) -> str:
        """Describe the reason in one line."""
        if self.signer:
            return f"signed by {self.signer} ({self.key})"
        if self.key:
            return f"signed by {self.key}, whom no rule names; {self.source} is trusted anyway"
        return f"not signed; {self.source} is trusted"


def require(manifest: bytes, signature: bytes | None, source_uri: str | Path, rules: Rules) -> Trusted:
    """Check the trust rules for a package before it is loaded.

    Every file of a package has its digest in the manifest, so the result holds for the package as long as the caller
    opens it with this very manifest.

    Raises `EngineError` for a refused source, a missing signature or unknown signer, and for a wrong signature whatever
    the rules.
    """
    source, rule = _admitted(source_uri, rules)
    key = signing.signer(manifest, signature) if signature is not None else None
    name = rules.name_of(key) if key is not None else None
    if rule.trust == "signed" and name is None:
        known = ", ".join(rules.signers) or "none"
        reason = f"it is signed by {signing.fingerprint(key)}, whom no rule names" if key else "it is not signed"
        raise EngineError(f"engines from {source} need a signature by a known signer ({known}): {reason}")
    return Trusted(source, signing.fingerprint(key) if key else None, name, rules is not EVERYTHING)


def require_package(package: Package, source_uri: str | Path, rules: Rules) -> Trusted:
    """Check the trust rules for an open package as `require` does, by the manifest that was read."""
    content = (package.directory / MANIFEST).read_bytes()
    if hashlib.sha256(content).hexdigest() != package.digest:
        raise EngineError(f"{package.directory / MANIFEST} has changed since it was read")
    return require(content, read_signature(package.directory), source_uri, rules)


def require_source(source_uri: str | Path, rules: Rules) -> None:
    """Check before a download that the rules do not refuse a source altogether.

    Raises `EngineError` if it is refused, or no rule allows it.
    """
    _admitted(source_uri, rules)


def _admitted(source_uri: str | Path, rules: Rules) -> tuple[str, Source]:
    """Canonical address of a source, and its rule."""
    uri = source_uri.resolve().as_uri() if isinstance(source_uri, Path) else source_uri
    rule = rules.source_of(uri)
    if rule is None or rule.trust == "refused":
        why = f"the rule for {rule.uri} refuses it" if rule else "no rule allows it"
        raise EngineError(f"engines from {canonical_address(uri)} are not trusted: {why}; see the trust rules ({FILE})")
    return canonical_address(uri), rule


def load(given: str | Path | None = None, home: str | Path | None = None) -> Rules:
    """Load the rules: ``any`` or the file ``given``, else of the variable, else of the home directory.

    Raises `UsageError` if the file is unreadable or invalid, has another ending, or other users may write it.
    """
    chosen = given or os.environ.get(VARIABLE)
    if chosen == ANY:
        return EVERYTHING
    directory = home_directory.location(None if home is None else Path(home))
    path = Path(chosen).expanduser() if chosen else directory / FILE
    try:
        if not chosen and not os.path.lexists(path):
            entries = sorted(directory.iterdir()) if directory.exists() else []
            if other := next((entry for entry in entries if _OTHER_ENDING.fullmatch(entry.name)), None):
                raise UsageError(f"the trust rules {other} are not read: rename the file to {FILE}")
            return EVERYTHING
        if problem := exposed(Path(os.path.realpath(path, strict=True))):
            raise UsageError(f"cannot use the trust rules: {problem}; chmod go-w, or chown it")
        content = documents.from_yaml(path)
    except OSError as error:
        raise UsageError(f"cannot read the trust rules {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the trust rules {path} are not YAML: {error}") from None
    try:
        return Rules.model_validate({} if content is None else content)
    except ValidationError as error:
        raise UsageError(f"the trust rules {path}: {explain(error, Rules)}") from None


def canonical_address(uri: str) -> str:
    """Canonical address without credentials."""
    if addresses.HIDDEN in (shown := addresses.shown(uri)):
        return shown
    scheme, host, path = _parts(uri)
    return f"{scheme}://{host}{path}" if scheme else path


def _parts(uri: str) -> tuple[str, str, str]:
    """Scheme, host and path of an address, without credentials, default port and detours in the path."""
    parts = urlsplit(uri)
    if not parts.scheme:
        return "", "", uri
    host = parts.netloc.rpartition("@")[2].lower().removesuffix(f":{_PORTS.get(parts.scheme, '')}")
    path = posixpath.normpath(unquote(parts.path)) if parts.path.strip("/") else ""
    # Of two files, sqlite:///x lies in the working directory, and sqlite:////x in the root.
    root = "//" if parts.scheme.startswith("sqlite") and parts.path.startswith("//") else "/"
    return parts.scheme, host, f"{root}{path.lstrip('/')}" if path else ""


def _matches(text: str, pattern: str) -> bool:
    """True if a text matches a pattern whose only wildcard is ``*``."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
