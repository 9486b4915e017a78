"""Table of contents of an archive, a tar file: every file with its size and digest.

It determines every byte of the archive, because headers have nothing but names and sizes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from mlflow_ngraph import documents, formats
from mlflow_ngraph.compilers.spec import FrozenModel
from mlflow_ngraph.engines.files import is_long, is_plain
from mlflow_ngraph.errors import ArchiveError
from mlflow_ngraph.execute.journal import FILE_NAME as JOURNAL
from mlflow_ngraph.validation import explain

FILE = "archive.json"
SIGNATURE_FILE = "archive.json.sig"
"""Optional signature; see `mlflow_ngraph.engines.signing`."""
SCHEMA_VERSION = 1
MAX_BYTES = 64 << 20
"""Largest size of a table of contents."""
ENGINES, DISAGREEMENTS = "engines/", "disagreements/"
"""Folders of engines, and of inputs on which engine and baseline disagree."""


def member(name: str, size: int) -> tarfile.TarInfo:
    """Entry of a file in the archive."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry


class ArchivedFile(FrozenModel):
    """Digest and size of a file."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: Annotated[int, Field(ge=0, lt=2**63, strict=True)]


class ArchivedStudy(FrozenModel):
    """A study with its files."""

    study_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    """Name of the directory as well."""
    name: str
    device: str
    started_at: float
    """Unix seconds."""
    files: Mapping[str, ArchivedFile]
    """By path relative to the directory of the study."""

    @field_validator("files")
    @classmethod
    def _are_of_a_study(cls, files: Mapping[str, ArchivedFile]) -> Mapping[str, ArchivedFile]:
        for path in files:
            if "/" in path and not path.startswith((ENGINES, DISAGREEMENTS)):
                raise ValueError(f"no study has a file {path[:80]!r}")
            if not is_plain(path) or is_long(path):
                raise ValueError(f"the file {path[:80]!r} leads out of the study, or has a name that no disk takes")
        if JOURNAL not in files:
            raise ValueError(f"there is no {JOURNAL}")
        return files

    def is_extracted(self, path: str) -> bool:
        """Tell files of the study directory from those that follow from the journal, which are for readers."""
        return path == JOURNAL or path.startswith((ENGINES, DISAGREEMENTS))


class Contents(FrozenModel):
    """``archive.json``, the first file of an archive."""

    format: Literal["mlflow-ngraph archive"] = "mlflow-ngraph archive"
    schema_version: Literal[1] = 1
    package: str
    """Version of the mlflow-ngraph that wrote it."""
    studies: tuple[ArchivedStudy, ...] = Field(min_length=1)

    @field_validator("studies")
    @classmethod
    def _stand_once(cls, studies: tuple[ArchivedStudy, ...]) -> tuple[ArchivedStudy, ...]:
        if len({study.study_id for study in studies}) != len(studies):
            raise ValueError("a study stands in it twice")
        return studies

    @classmethod
    def parse(cls, content: bytes, where: str) -> Contents:
        """Parse ``archive.json``.

        ``where`` names the archive in messages. Raises `ArchiveError` if it is none, or one of a newer version; says
        which reads it.
        """
        try:
            document = documents.from_json(content)
            if isinstance(document, dict):
                other = formats.version_mismatch(
                    document.get("schema_version"), SCHEMA_VERSION, document.get("package")
                )
                if other:
                    raise ArchiveError(f"{where}: {other}")
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise ArchiveError(f"{where}: {FILE} is not readable: {explain(error, cls)}") from None
        except ValueError as error:
            raise ArchiveError(f"{where}: {FILE} is not readable: {error}") from None

    def to_json(self) -> bytes:
        """Serialize; equal contents give equal text."""
        return (self.model_dump_json(indent=1) + "\n").encode()

    def members(self) -> Iterator[tuple[ArchivedStudy, str, ArchivedFile]]:
        """Files in the order of the archive."""
        for study in self.studies:
            # The journal comes first: without it nothing else is worth reading.
            for path in sorted(study.files, key=lambda path: (path != JOURNAL, path)):
                yield study, path, study.files[path]
