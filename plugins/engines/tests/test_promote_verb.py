"""``promote`` and ``sign`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.logged import Logged
from tests.support.variants import Shelf

Cli = Callable[..., tuple[int, str, str]]


def test_a_champion_and_its_challengers(shelf: Shelf, cli: Cli, cli_json: Callable[..., Any]) -> None:
    first, worse = shelf.put(100.0), shelf.put(90.0)
    document = cli_json("engine", "promote", first, "--name", "resnet")
    assert (document["state"], document["version"], document["alias"]) == ("promoted", "1", "xeon-champion")
    assert document["comparison"] is None
    code, out, _ = cli("engine", "promote", worse, "--name", "resnet", "--json")
    assert code == 3
    document = json.loads(out)
    assert (document["state"], document["version"], document["overruled"]) == ("refused", None, False)
    assert document["comparison"]["ratio"] == pytest.approx(0.9)
    code, out, _ = cli("engine", "promote", worse, "--name", "resnet")
    assert code == 3
    assert "resnet@xeon-champion stays as it is" in out
    assert "- it is not significantly better than the champion, version 1: throughput ratio 0.900" in out
    code, out, _ = cli("engine", "promote", worse, "--name", "resnet", "--force", "--dry-run")
    assert code == 0
    assert "would be" in out
    assert "in place of version 1" in out


def test_signing_and_trusting(
    shelf: Shelf, cli: Cli, cli_json: Callable[..., Any], signing_key: Path, tmp_path: Path
) -> None:
    model = shelf.put(100.0)
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"signers: {{alice: '{signing_key.with_suffix('.pub').read_text().strip()}'}}\n")
    code, out, _ = cli("engine", "verify", f"models:/{model}", "--trust", str(rules), "--json")
    assert code == 1
    (check,) = json.loads(out)["checks"]
    assert (check["check"], check["status"]) == ("trust", "problem")
    assert "it is not signed" in check["found"]
    signed = cli_json("engine", "sign", f"models:/{model}", "--key", str(signing_key))
    assert signed["signed_by"].startswith("SHA256:")
    document = cli_json("engine", "verify", f"models:/{model}", "--trust", str(rules))
    assert document["checks"][0]["found"].startswith("signed by alice (SHA256:")
    assert "its files are data for a runtime" in document["checks"][0]["found"]
    code, out, _ = cli("engine", "promote", model, "--name", "signed", "--sign", str(signing_key))
    assert code == 0
    assert "signed by SHA256:" in out


def test_a_directory_is_signed_once_it_proved_whole(
    logged: Logged, cli: Cli, signing_key: Path, tmp_path: Path
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    code, out, err = cli("engine", "sign", str(package), "--key", str(signing_key))
    assert code == 0, err
    assert "is signed by SHA256:" in out
    (package / "engine/model.bin").write_bytes(b"")
    (package / "manifest.json.sig").unlink()
    code, _, err = cli("engine", "sign", str(package), "--key", str(signing_key))
    assert code == 1
    assert "engine/model.bin has changed" in err
    assert not (package / "manifest.json.sig").exists()
    code, _, err = cli("engine", "sign", str(package), "--key", str(tmp_path / "none"))
    assert code == 2
    assert "cannot read the key" in err
