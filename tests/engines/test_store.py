"""The engines of this machine: whole or not at all, whoever else is filling, taking and removing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.manifest import DIGEST_FILE, ENGINE_DIRECTORY, FILE, Manifest
from mlflow_ngraph.engines.package import digest_line
from mlflow_ngraph.engines.store import EngineStore
from mlflow_ngraph.errors import EngineError
from tests.support.specs import KEY, engine_spec, stored_engine


def written(directory: Path, text: str = "code") -> Path:
    """The directory of an engine as a compiler leaves it."""
    (directory / "nested").mkdir(parents=True)
    (directory / "model.bin").write_bytes(text.encode() * 1000)
    (directory / "nested" / "explanation-b1.json").write_text("{}")
    engine_spec().write(directory)
    return directory


def compiled(directory: Path) -> tuple[Manifest, Path]:
    """An engine and where it lies."""
    return stored_engine(written(directory)), directory


@pytest.fixture
def filled(tmp_path: Path) -> tuple[EngineStore, Manifest]:
    kept = EngineStore(tmp_path / "engines")
    engine, source = compiled(tmp_path / "study" / "engine")
    kept.add(engine, source)
    return kept, engine


def test_what_was_kept_is_found_and_placed(filled: tuple[EngineStore, Manifest], tmp_path: Path) -> None:
    kept, engine = filled
    assert kept.find(KEY) == engine
    kept.place(engine, tmp_path / "other" / "e1")
    assert digest_files(tmp_path / "other" / "e1") == engine.engine_files()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["e1"]


def test_an_unknown_key_is_no_error(tmp_path: Path) -> None:
    assert EngineStore(tmp_path / "nothing").find(KEY) is None
    assert EngineStore(tmp_path / "nothing").entries() == []


def test_links_cost_no_space_and_cannot_be_written_by_accident(
    filled: tuple[EngineStore, Manifest], tmp_path: Path
) -> None:
    kept, engine = filled
    kept.place(engine, tmp_path / "e")
    one, other = (place / "model.bin" for place in (tmp_path / "study" / "engine", tmp_path / "e"))
    assert one.samefile(other)
    assert not one.stat().st_mode & 0o222
    assert kept.freed_bytes(engine) == 0


def test_without_hard_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    engine, source = compiled(tmp_path / "source")
    kept = EngineStore(tmp_path / "engines")
    kept.add(engine, source)
    assert kept.find(KEY) == engine
    assert not (source / "model.bin").samefile(kept.root / KEY / ENGINE_DIRECTORY / "model.bin")
    assert kept.freed_bytes(engine) == engine.size_bytes


@pytest.mark.parametrize("harm", ["change", "remove", "add", "record", "record changed", "no digest", "other key"])
def test_damage_is_found_by_name(filled: tuple[EngineStore, Manifest], harm: str) -> None:
    kept, _ = filled
    file, record = kept.root / KEY / ENGINE_DIRECTORY / "model.bin", kept.root / KEY / FILE
    if harm == "change":
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(b"x" + content[1:])
    elif harm == "remove":
        file.unlink()
    elif harm == "add":
        file.with_name("more.bin").touch()
    elif harm == "record":
        record.write_text("{")
    elif harm == "record changed":
        record.write_text(record.read_text().replace(" 1,", " 4,"))
    elif harm == "no digest":
        record.with_name(DIGEST_FILE).unlink()
    else:
        record.write_text(record.read_text().replace(KEY, "cd" * 32))
    with pytest.raises(EngineError, match=KEY):
        kept.find(KEY)
    kept.remove(KEY)
    assert kept.find(KEY) is None


def test_an_engine_that_others_could_change_is_not_used(filled: tuple[EngineStore, Manifest]) -> None:
    kept, engine = filled
    assert kept.find(KEY) == engine
    (kept.root / KEY / ENGINE_DIRECTORY / "model.bin").chmod(0o666)
    with pytest.raises(EngineError, match=r"model\.bin may be written by other users: only engines that nobody else"):
        kept.find(KEY)
    kept.remove(KEY)
    assert kept.find(KEY) is None


def test_an_umask_that_lets_a_group_write_keeps_no_engine_from_being_used(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        engine, source = compiled(tmp_path / "source")
        kept = EngineStore(tmp_path / "engines")
        kept.add(engine, source)
    finally:
        os.umask(before)
    assert kept.find(KEY) == engine


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_an_engine_of_another_user_is_not_used(filled: tuple[EngineStore, Manifest]) -> None:
    kept, _ = filled
    os.chown(kept.root / KEY / ENGINE_DIRECTORY / "model.bin", 1001, 1001)
    with pytest.raises(EngineError, match=r"model\.bin belongs to another user"):
        kept.find(KEY)


def test_removing_takes_nothing_from_a_study(filled: tuple[EngineStore, Manifest], tmp_path: Path) -> None:
    kept, engine = filled
    kept.place(engine, tmp_path / "running")
    kept.remove(KEY)
    kept.remove(KEY)
    assert digest_files(tmp_path / "running") == engine.engine_files()
    assert list(kept.root.iterdir()) == []


def test_an_entry_that_vanishes_while_it_is_placed_leaves_nothing(
    filled: tuple[EngineStore, Manifest], tmp_path: Path
) -> None:
    kept, engine = filled
    kept.remove(KEY)
    with pytest.raises(OSError, match="model"):
        kept.place(engine, tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_a_fill_that_breaks_off_leaves_no_entry(tmp_path: Path) -> None:
    engine, source = compiled(tmp_path / "source")
    lost = engine.model_copy(update={"files": {**engine.files, "engine/not-there.bin": "0" * 64}})
    kept = EngineStore(tmp_path / "engines")
    with pytest.raises(OSError, match="not-there"):
        kept.add(lost, source)
    assert list(kept.root.iterdir()) == []


@pytest.mark.usefixtures("processes")
def test_a_fill_that_is_killed_leaves_no_entry_and_its_rest_is_swept(tmp_path: Path) -> None:
    """SIGKILL between the files and the record."""
    script = """
        import os, signal, sys
        from pathlib import Path
        from mlflow_ngraph.engines.store import EngineStore
        from tests.engines.test_store import compiled

        EngineStore.publish = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        engine, source = compiled(Path("source"))
        EngineStore(Path("engines")).add(engine, source)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, env=env, check=False)
    assert done.returncode == -9
    kept = EngineStore(tmp_path / "engines")
    assert kept.find(KEY) is None
    assert kept.entries() == []
    (rest,) = kept.root.iterdir()
    os.utime(rest, (0, 0))
    engine, source = compiled(tmp_path / "again")
    kept.add(engine, source)
    assert [path.name for path in kept.root.iterdir()] == [KEY]


def fill(place: Path, number: int) -> bool:
    """What each of several processes does."""
    engine, source = compiled(place / f"source-{number}")
    kept = EngineStore(place / "engines")
    kept.add(engine, source)
    return kept.find(KEY) is not None


@pytest.mark.usefixtures("processes")
def test_several_processes_fill_the_same_key_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        assert all(pool.map(fill, [tmp_path] * 16, range(16)))
    kept = EngineStore(tmp_path / "engines")
    assert [path.name for path in kept.root.iterdir()] == [KEY]
    assert kept.find(KEY) is not None


def test_an_engine_serves_equal_machines_only() -> None:
    engine = engine_spec()
    assert engine.serves({"fake": "1.0"}) == ""
    assert engine.serves({}) == ""
    assert engine.serves({"fake": "1.1"}) == "it needs fake 1.0, here is 1.1"
    assert engine.serves({"fake": "1.0", "isa": "avx2"}) == "it needs isa unknown, here is avx2"


def _sealed(entry: Path, part: str | None = None, **changed: object) -> None:
    """Change a manifest or a part of it, and its digest with it."""
    manifest = json.loads((entry / FILE).read_text())
    (manifest[part] if part else manifest).update(changed)
    content = json.dumps(manifest).encode()
    (entry / FILE).write_bytes(content)
    (entry / DIGEST_FILE).write_text(digest_line(hashlib.sha256(content).hexdigest()))


def _linked(file: Path) -> None:
    """A link to what a file had."""
    outside = file.parents[3] / "outside"
    file.rename(outside)
    file.symlink_to(outside)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda entry: _linked(entry / FILE), "is a link"),
        (lambda entry: _linked(entry / ENGINE_DIRECTORY / "model.bin"), "is a link"),
        (lambda entry: _linked(entry / ENGINE_DIRECTORY / "nested"), "is a link"),
        (lambda entry: (entry / FILE).unlink(), "is not readable"),
        (lambda entry: (entry / "sitecustomize.py").touch(), "is not in the manifest"),
        (lambda entry: os.mkfifo(entry / ENGINE_DIRECTORY / "pipe"), "is no file"),
        (lambda entry: _sealed(entry, size_bytes=5), "its manifest says 5"),
        (lambda entry: _sealed(entry, schema_version=1), "has format 1, .* or compile the engine again"),
        (lambda entry: _sealed(entry, files={"../../outside": "0" * 64}), "leads out of the package"),
        (lambda entry: _sealed(entry, files={"y/" * 3000 + "z": "0" * 64}), "which no disk takes"),
        (lambda entry: _sealed(entry, "spec", batch_sizes=[0]), "spec.batch_sizes"),
    ],
)
def test_an_entry_that_is_not_what_was_kept_is_refused_and_can_be_kept_again(
    harm: Callable[[Path], object], said: str, filled: tuple[EngineStore, Manifest], tmp_path: Path
) -> None:
    kept, engine = filled
    harm(kept.root / KEY)
    with pytest.raises(EngineError, match=said):
        kept.find(KEY)
    kept.remove(KEY)
    kept.add(engine, compiled(tmp_path / "again")[1])
    assert kept.find(KEY) == engine
