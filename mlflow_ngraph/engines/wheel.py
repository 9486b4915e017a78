"""Build a wheel of this package from its installation, for the environments of MLflow models.

A model's environment installs its listed requirements, and this package need not be on an index. So the wheel lies in
the model and the requirements name it by its path; pip then finds its dependencies as usual. It is a plain zip of the
installed files with the metadata of the installation.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from functools import cache
from importlib import resources
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from mlflow_ngraph.errors import DependencyError
from mlflow_ngraph.version import __version__

_CORE = "mlflow-ngraph"
_LEFT = "__pycache__"
"""Files that Python generates; everything else belongs to the package."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold: equal files make equal wheels."""


@cache
def wheel(name: str = _CORE) -> tuple[str, bytes]:
    """File name and content of the wheel.

    The name has a digest of the content, so that environments of different wheels are never confused.

    Raises `DependencyError` if the distribution, this one or a plugin, is not installed with metadata.
    """
    package = name.replace("-", "_")
    root = Path(str(resources.files(package))).resolve()
    files = {
        f"{root.name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and _LEFT not in path.parts
    }
    try:
        installation = distribution(name)
    except PackageNotFoundError:
        raise DependencyError(f"{name} is not installed: pip install it, so that models know what it needs") from None
    stem = f"{package}-{__version__}"
    about = f"{stem}.dist-info"
    files[f"{about}/METADATA"] = _metadata(installation).encode()
    files[f"{about}/entry_points.txt"] = (installation.read_text("entry_points.txt") or "").encode()
    tag = "0" + hashlib.sha256(b"".join(name.encode() + files[name] for name in files)).hexdigest()[:12]
    files[f"{about}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: {_CORE}\nRoot-Is-Purelib: true\nTag: py3-none-any\nBuild: {tag}\n".encode()
    )
    files[f"{about}/RECORD"] = _record(files, about).encode()
    return f"{stem}-{tag}-py3-none-any.whl", _zipped(files)


def _metadata(installation: Distribution) -> str:
    """Metadata of the installation, with the version of the running code."""
    text = installation.read_text("METADATA") or installation.read_text("PKG-INFO") or ""
    lines = [f"Version: {__version__}" if line.startswith("Version: ") else line for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _record(files: dict[str, bytes], about: str) -> str:
    rows = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(content)}")
    return "\n".join([*rows, f"{about}/RECORD,,"]) + "\n"


def _zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, content)
    return target.getvalue()
