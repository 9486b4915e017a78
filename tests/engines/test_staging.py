"""The staging directory of a pull is this user's alone, and nothing behind a link is written or removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.staging import staging_directory
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tracking import download
from tests.support.specs import stored_engine


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory that somebody would like to see emptied."""
    directory = tmp_path / "victim"
    directory.mkdir()
    (directory / "thesis.txt").write_text("precious")
    return directory


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "model.bin").write_bytes(b"code")
    return stored_engine(tmp_path / "compiled")


def test_it_is_private_and_moves_onto_what_is_there(tmp_path: Path) -> None:
    target = tmp_path / "engine"
    target.mkdir()
    (target / "old").touch()
    with staging_directory(target) as staging:
        assert (tmp_path / ".engine.pull").stat().st_mode & 0o777 == 0o700
        staging.package.mkdir()
        (staging.package / "new").touch()
        staging.publish()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert not (tmp_path / ".engine.pull").exists()


def test_one_that_is_a_link_is_refused(tmp_path: Path, victim: Path) -> None:
    (tmp_path / ".engine.pull").symlink_to(victim)
    with pytest.raises(UsageError, match=r"\.engine\.pull is a link: .*choose another place"):
        staging_directory(tmp_path / "engine").__enter__()
    assert [path.name for path in victim.iterdir()] == ["thesis.txt"]


def test_one_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".engine.pull").mkdir()
    (tmp_path / ".engine.pull").chmod(0o777)
    with pytest.raises(UsageError, match=r"\.engine\.pull may be written by other users"):
        staging_directory(tmp_path / "engine").__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_one_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".engine.pull").mkdir()
    os.chown(tmp_path / ".engine.pull", 1001, 1001)
    with pytest.raises(UsageError, match=r"\.engine\.pull belongs to another user"):
        staging_directory(tmp_path / "engine").__enter__()


def test_a_lock_that_is_a_link_makes_no_file_elsewhere(tmp_path: Path, victim: Path) -> None:
    (tmp_path / ".engine.pull").mkdir(mode=0o700)
    (tmp_path / ".engine.pull" / "lock").symlink_to(victim / "lock")
    with pytest.raises(UsageError, match="cannot write"):
        staging_directory(tmp_path / "engine").__enter__()
    assert not (victim / "lock").exists()


@pytest.mark.parametrize("link", ["package", "package/engine", "package/a", "package/.parts"])
def test_nothing_behind_a_link_is_removed(tmp_path: Path, victim: Path, manifest: Manifest, link: str) -> None:
    package = tmp_path / "package"
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(victim)
    download._clear(package, manifest)
    assert (victim / "thesis.txt").read_text() == "precious"
    assert link == "package" or not (tmp_path / link).is_symlink()


def test_files_of_another_package_go_and_parts_stay(tmp_path: Path, manifest: Manifest) -> None:
    package = tmp_path / "package"
    for name in ("engine/model.bin", "engine/other/old.bin", "old", ".parts/half"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    download._clear(package, manifest)
    assert sorted(path.relative_to(package).as_posix() for path in package.rglob("*")) == [
        ".parts",
        ".parts/half",
        "engine",
        "engine/model.bin",
    ]
