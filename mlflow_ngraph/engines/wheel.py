"""Build wheels of this package and its plugins from their installation, for MLflow models, and compare wheels.

A model's environment installs its listed requirements, and this package need not be on an index. So the wheel lies in
the model and the requirements name it by its path; pip then finds its dependencies as usual. It is a plain zip of the
installed files with the metadata of the installation.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from mlflow_ngraph.entry_points import ENGINE_PLUGINS, module_of
from mlflow_ngraph.errors import DependencyError
from mlflow_ngraph.version import __version__

_CORE = "mlflow-ngraph"
_LEFT = "__pycache__"
"""Files that Python generates; everything else belongs to the package."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold: equal files make equal wheels."""
_LISTED_BYTES, _END_BYTES = 46, 22
"""Sizes of a member in the list of a zip, beside its name, and of the record at its end."""


def is_plugin(name: str) -> bool:
    """True if a distribution is a plugin of this project that engines need, which need not be on an index either."""
    return name in ENGINE_PLUGINS


def wheels_of(packages: Iterable[str]) -> list[tuple[str, bytes]]:
    """Wheels of this package, and of the plugins among the distributions that an engine needs."""
    return [wheel(), *(wheel(name) for name in sorted(packages) if is_plugin(name))]


@cache
def wheel(name: str = _CORE) -> tuple[str, bytes]:
    """File name and content of the wheel.

    The name has a digest of the content, so that environments of different wheels are never confused.

    Raises `DependencyError` if the distribution, this one or a plugin, is not installed with metadata.
    """
    package = module_of(name)
    try:
        installation = distribution(name)
        root = Path(str(resources.files(package))).resolve()
    except (PackageNotFoundError, ModuleNotFoundError):
        raise DependencyError(f"{name} is not installed: pip install it, so that models know what it needs") from None
    files = {
        f"{root.name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and _LEFT not in path.parts
    }
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


def has_files(wheel: bytes, own: bytes) -> bool:
    """True if a wheel is ``own`` but for the compression, which differs from one zlib to another.

    An archive may hold more than its list of members says: what lies before, between and after them is not looked at by
    pip, but by others. Raises `ValueError` or `zipfile.BadZipFile` if it is none.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as theirs, zipfile.ZipFile(io.BytesIO(own)) as ours:
        members, place = theirs.infolist(), 0
        if list(map(_facts, members)) != list(map(_facts, ours.infolist())):
            return False
        for member in members:
            header = member.FileHeader()
            begin = place + len(header)
            if member.header_offset != place or wheel[place:begin] != header:
                return False
            place = begin + member.compress_size
            if _unpacked(member, wheel[begin:place]) != ours.read(member.filename):
                return False
        listed = sum(_LISTED_BYTES + len(member.filename.encode()) for member in members)
        return theirs.start_dir == place and len(wheel) == place + listed + _END_BYTES


def _facts(member: zipfile.ZipInfo) -> tuple[object, ...]:
    """All that an archive says of a member but for its compression."""
    attributes = (member.external_attr, member.internal_attr, member.create_system, member.flag_bits, member.volume)
    named = (member.filename, member.orig_filename, member.file_size, member.CRC, member.date_time)
    return (*named, *attributes, member.extra, member.comment)


def _unpacked(member: zipfile.ZipInfo, data: bytes) -> bytes | None:
    """Content of a member; None if anything lies behind it, or another method packed it."""
    if member.compress_type == zipfile.ZIP_STORED:
        return data
    if member.compress_type != zipfile.ZIP_DEFLATED:
        return None
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(data, member.file_size + 1)
    except zlib.error:
        return None
    return content if unpacker.eof and not unpacker.unused_data else None


def _zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, content)
    return target.getvalue()
