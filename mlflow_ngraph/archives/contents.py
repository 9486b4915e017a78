"""The table of contents of an archive of studies: every file with its size and digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from mlflow_ngraph import documents, formats
from mlflow_ngraph.compilers.spec import FrozenModel
from mlflow_ngraph.engines.files import is_long, is_plain
from mlflow_ngraph.errors import ArchiveError
from mlflow_ngraph.execute.journal import FILE_NAME as JOURNAL
from mlflow_ngraph.tracking.schema import Artifact
from mlflow_ngraph.validation import explain

FILE = "archive.json"
SIGNATURE_FILE = "archive.json.sig"
"""Beside it, where somebody has signed it; see `mlflow_ngraph.engines.signing`."""
SCHEMA_VERSION = 1
MAX_BYTES = 64 << 20
"""No table of contents is larger."""
ENGINES, DISAGREEMENTS = "engines/", "disagreements/"
"""How the paths of engines' files begin, and those of inputs that engines and baseline disagree about."""
MADE_HERE = (JOURNAL, Artifact.STUDY)
"""What a study directory has beside them. Other files beside these are derived from them, and stand in an archive for readers."""


class ArchivedFile(FrozenModel):
    """What tells that a file is whole."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: Annotated[int, Field(ge=0, strict=True)]


class ArchivedStudy(FrozenModel):
    """A study with its files."""

    study_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    """Also the name of its directory."""
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

    def lands(self, path: str) -> bool:
        """Whether a file belongs into the directory of a study."""
        return path in MADE_HERE or path.startswith((ENGINES, DISAGREEMENTS))


class Contents(FrozenModel):
    """What ``archive.json`` says, the first file of an archive."""

    format: Literal["mlflow-ngraph archive"] = "mlflow-ngraph archive"
    schema_version: Literal[1] = 1
    package: str
    """The version of mlflow-ngraph that wrote it."""
    studies: tuple[ArchivedStudy, ...] = Field(min_length=1)

    @field_validator("studies")
    @classmethod
    def _stand_once(cls, studies: tuple[ArchivedStudy, ...]) -> tuple[ArchivedStudy, ...]:
        if len({study.study_id for study in studies}) != len(studies):
            raise ValueError("a study stands in it twice")
        return studies

    @classmethod
    def parse(cls, content: bytes, where: str) -> Contents:
        """Read the text of the file.

        Parameters
        ----------
        where : str
            Names the archive in messages.

        Raises
        ------
        ArchiveError
            It is none, or one of a newer version; says which reads it.
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
        """The text of the file; equal contents have equal text."""
        return (self.model_dump_json(indent=1) + "\n").encode()

    def members(self) -> Iterator[tuple[ArchivedStudy, str, ArchivedFile]]:
        """The files in the order in which they stand in the archive, behind this one."""
        for study in self.studies:
            # The journal first: nothing else is worth reading if that cannot be.
            for path in sorted(study.files, key=lambda path: (path != JOURNAL, path)):
                yield study, path, study.files[path]
