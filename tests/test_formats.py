"""Files that the first version of each format wrote are read, and those of a newer one are refused with what reads them.

Whoever changes a format raises its number and adds a file; those that lie in tests/data/formats stay as they are.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from mlflow_ngraph.analysis import table_checks
from mlflow_ngraph.analysis.listing import ListedRun
from mlflow_ngraph.analysis.table_checks import BadTableError
from mlflow_ngraph.engines import manifest
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.trust import EVERYTHING
from mlflow_ngraph.errors import ArchiveError, EngineError, JournalError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.tables import results_file
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph_archives import contents, importing
from mlflow_ngraph_archives.contents import Contents

DATA = Path(__file__).parent / "data" / "formats"
ARCHIVE = DATA / "archive-1.tar"
NEWER = r"has format 2, and this is mlflow-ngraph \S+, for format 1: mlflow-ngraph 9\.1\.0 wrote it and reads it"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The directory of the study in the archive."""
    (tmp_path / "studies").mkdir()
    (arrived,) = importing.unpack(importing.check(ARCHIVE, EVERYTHING), tmp_path / "studies")
    return arrived.directory


def member(name: str) -> bytes:
    with tarfile.open(ARCHIVE) as tar:
        found = next(one for one in tar if one.name.endswith(name))
        return tar.extractfile(found).read()  # type: ignore[union-attr]


def table(content: bytes, study_id: str) -> pa.Table:
    return table_checks.parsed(content, ListedRun("run", "golden", "1", "", {Tag.STUDY_ID: study_id}))


def test_each_format_has_a_file_here() -> None:
    numbers = (contents.SCHEMA_VERSION, journal.SCHEMA_VERSION, manifest.SCHEMA_VERSION, results_file.FORMAT)
    assert numbers == (1, 1, 2, 1), "add files of the new format, and read the old ones or refuse them by name"


def test_an_archive_its_journal_and_its_table_are_read(study: Path) -> None:
    record = replay.load(study)
    (lane,) = record.lanes.values()
    assert {batch: str(cell.verdict) for batch, cell in lane.cells.items()} == {1: "ok", 2: "ok"}
    rows = table(member("results.parquet"), record.id).to_pylist()
    recorded = {row["batch"]: row["latency_p50_ms"] for row in rows}
    assert recorded == pytest.approx(
        {batch: cell.metrics["latency_p50_ms"] for batch, cell in lane.cells.items()}, rel=1e-9
    )
    assert len(pq.read_table(io.BytesIO(member("samples.parquet")))) == 12


def test_a_manifest_is_read() -> None:
    read = Manifest.parse((DATA / "manifest-2.json").read_bytes(), "golden")
    assert (read.spec.workload, read.spec.batch_sizes) == ("block:mha?depth=1&width=16", (1, 2))
    assert read.to_json().encode() == (DATA / "manifest-2.json").read_bytes()


def test_a_manifest_of_the_first_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"has format 1, .* for format 2: .*; or compile the engine again"):
        Manifest.parse((DATA / "manifest-1.json").read_bytes(), "golden")


def test_a_text_in_the_place_of_the_format_is_said_to_be_one() -> None:
    content = (DATA / "manifest-2.json").read_bytes().replace(b'"schema_version": 2', b'"schema_version": "2"', 1)
    with pytest.raises(EngineError, match=r"golden has the text '2' for its format, which is a number; or compile"):
        Manifest.parse(content, "golden")


def test_a_newer_journal_is_refused_with_what_reads_it(tmp_path: Path) -> None:
    line, _ = journal.line_of(
        {"event": "study_started", "schema_version": 2, "versions": {"mlflow-ngraph": "9.1.0"}}, ""
    )
    (tmp_path / journal.FILE_NAME).write_bytes(line)
    with pytest.raises(JournalError, match=NEWER):
        replay.load(tmp_path)


def test_a_newer_manifest_is_refused_with_what_reads_it() -> None:
    document = json.loads((DATA / "manifest-2.json").read_bytes())
    document |= {"schema_version": 3, "unheard": "of"}
    document["origin"]["versions"]["mlflow-ngraph"] = "9.1.0"
    with pytest.raises(
        EngineError, match=NEWER.replace("format 1", "format 2").replace("has format 2", "has format 3")
    ):
        Manifest.parse(json.dumps(document).encode(), "golden")


def test_a_newer_archive_is_refused_with_what_reads_it() -> None:
    with pytest.raises(ArchiveError, match=NEWER):
        Contents.parse(b'{"schema_version": 2, "package": "9.1.0", "things": []}', "golden")


def test_a_newer_table_is_refused_with_what_reads_it_and_one_that_says_nothing_is_an_old_one(study: Path) -> None:
    stored = pq.read_table(io.BytesIO(member("results.parquet")))
    for said, reads in ((None, True), ("1", True), ("2", False), ("two", False)):
        metadata = {} if said is None else {"ngraph.format": said, "ngraph.version": "9.1.0"}
        stream = io.BytesIO()
        pq.write_table(stored.replace_schema_metadata(metadata), stream)
        if reads:
            assert table(stream.getvalue(), study.name).num_rows == 2
            continue
        with pytest.raises(
            BadTableError, match=rf"has format {said}, .*9\.1\.0 wrote it and reads it; its rows are left out"
        ):
            table(stream.getvalue(), study.name)
