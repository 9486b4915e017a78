"""Rules say whose engines are loaded; what no rule allows is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mlflow_ngraph
from mlflow_ngraph.compilers.openvino.adapter import OpenVINO
from mlflow_ngraph.engines import signing, trust
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.engines.trust import EVERYTHING, Rules, Source, require
from mlflow_ngraph.errors import EngineError, UsageError
from tests.support.keys import write_key
from tests.support.logged import Logged

MANIFEST = b"{}"
SERVER = "https://mlflow.example.com"


@pytest.fixture(autouse=True)
def _no_rules_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))


def rules(path: Path, **signers: str) -> Path:
    """A file that believes the server and wants signatures from anywhere else."""
    lines = ["sources:", f'  - {{uri: "{SERVER}", trust: allowed}}', '  - {uri: "*", trust: signed}', "signers:"]
    lines += [f'  {name}: "{text}"' for name, text in signers.items()] or ["  {}"]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("pattern", "uri", "fits"),
    [
        ("*", "sqlite:///mlflow.db", True),
        (SERVER, SERVER, True),
        (SERVER, f"{SERVER}/", True),
        (SERVER, f"{SERVER}:443/sub/path", True),
        (SERVER, "https://alice:secret@MLFLOW.example.com", True),
        (SERVER, "http://mlflow.example.com", False),
        (SERVER, f"{SERVER}.evil.org", False),
        (SERVER, f"{SERVER}:8443", False),
        (SERVER, "https://evil.org/mlflow.example.com", False),
        (SERVER, "https://mlflow.example.com@evil.org", False),
        ("https://*.example.com", SERVER, True),
        ("https://*.example.com", "https://example.com", False),
        ("https://*.example.com", "https://evil.org/x.example.com", False),
        ("http://10.0.0.*:5000", "http://10.0.0.7:5000", True),
        ("http://10.0.0.*:5000", "http://10x0.0.7:5000", False),
        ("file:///srv/engines", "file:///srv/engines/resnet18", True),
        ("file:///srv/engines", "file:///srv/engines2", False),
        ("file:///srv/engines", "file:///srv/engines/../other", False),
        ("file:///srv/engines", "file:///srv/engines%3F/../../other", False),
        ("file:*", "file:///anywhere", True),
        ("sqlite:*", "sqlite:////data/mlflow.db", True),
        ("sqlite:////data", "sqlite:////data/mlflow.db", True),
        ("sqlite:////data", "sqlite:///data/mlflow.db", False),
        ("databricks", "databricks", True),
    ],
)
def test_patterns_mean_what_they_look_like(pattern: str, uri: str, fits: bool) -> None:
    assert Source(uri=pattern, trust="allowed").fits(uri) is fits


def test_the_first_rule_that_fits_decides() -> None:
    found = Rules(
        sources=(
            Source(uri="http://one", trust="refused"),
            Source(uri="http://*", trust="allowed"),
        )
    )
    with pytest.raises(EngineError, match="http://one are not trusted: the rule for http://one refuses it"):
        require(MANIFEST, None, "http://one", found)
    assert require(MANIFEST, None, "http://two", found).found == "not signed; http://two is trusted"
    assert require(MANIFEST, None, "sqlite:////x/y", EVERYTHING).source == "sqlite:////x/y"
    with pytest.raises(EngineError, match="no rule allows it"):
        require(MANIFEST, None, "https://three", found)


def test_a_signature_counts_if_it_is_by_somebody_who_is_known(signing_key: Path, tmp_path: Path) -> None:
    signature = signing.sign(MANIFEST, signing.load_key(signing_key))
    known = trust.load(rules(tmp_path / "known.yaml", alice=signing_key.with_suffix(".pub").read_text().strip()))
    found = require(MANIFEST, signature, "http://two", known)
    assert found.signer == "alice"
    assert found.found.startswith("signed by alice (SHA256:")
    with pytest.raises(EngineError, match=r"need a signature by a known signer \(alice\): it is not signed"):
        require(MANIFEST, None, "http://two", known)
    others = trust.load(rules(tmp_path / "others.yaml", bob=write_key(tmp_path / "bob")))
    with pytest.raises(EngineError, match=r"it is signed by SHA256:.*, whom no rule names"):
        require(MANIFEST, signature, "http://two", others)
    assert require(MANIFEST, signature, SERVER, others).signer is None


def test_a_wrong_signature_is_refused_whatever_the_rules(signing_key: Path) -> None:
    signature = signing.sign(b"another manifest", signing.load_key(signing_key))
    with pytest.raises(EngineError, match="is not one of this manifest"):
        require(MANIFEST, signature, SERVER, EVERYTHING)


def test_where_rules_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trust.load() == EVERYTHING
    home = tmp_path / "home"
    home.mkdir()
    (home / trust.FILE).write_text("sources: []\n")
    assert trust.load().sources == ()
    (tmp_path / "other.yaml").write_text("sources: [{uri: '*', trust: refused}]\n")
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path / "other.yaml"))
    assert trust.load().sources[0].trust == "refused"
    assert trust.load(trust.ANY) == EVERYTHING
    monkeypatch.setenv(trust.VARIABLE, trust.ANY)
    assert trust.load() == EVERYTHING
    (home / trust.FILE).write_text("")
    monkeypatch.delenv(trust.VARIABLE)
    assert [rule.trust for rule in trust.load().sources] == ["signed"]


def test_rules_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    """Without them everybody would be believed."""
    home = tmp_path / "other"
    home.mkdir()
    file = home / trust.FILE
    file.symlink_to(tmp_path / "unmounted" / trust.FILE)
    with pytest.raises(UsageError, match=r"cannot read the trust rules .*: No such file"):
        trust.load(home=home)
    assert trust.load() == EVERYTHING
    (tmp_path / "unmounted").mkdir()
    (tmp_path / "unmounted" / trust.FILE).write_text("sources: []\n")
    assert trust.load(home=home).sources == ()
    for mode in (0o666, 0o664):
        file.chmod(mode)
        with pytest.raises(UsageError, match=r"trust\.yaml may be written by other users; chmod go-w"):
            trust.load(home=home)
    for name in ("trust.yml", "Trust.yaml"):
        file.unlink()
        file = home / name
        file.write_text("sources: []\n")
        with pytest.raises(UsageError, match=f"{name} are not read: rename the file to trust.yaml"):
            trust.load(home=home)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sources: [{uri: x, trust: maybe}]", "sources.0.trust: expected 'allowed', 'signed' or 'refused'"),
        ("servers: []", "servers: unknown key"),
        ("signers: {alice: ssh-rsa AAAA}", "expected a public key such as"),
        ("signers: {alice: ssh-ed25519 AAAA}", "is cut off or damaged"),
        ("{", "are not YAML"),
        ("- a", "expected a mapping of keys"),
    ],
)
def test_wrong_rules_are_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "trust.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"trust\.yaml") as error:
        trust.load(tmp_path / "trust.yaml")
    assert said in str(error.value)
    with pytest.raises(UsageError, match="cannot read the trust rules"):
        trust.load(tmp_path / "none.yaml")


def test_no_runtime_sees_an_engine_that_is_not_trusted(
    logged: Logged, tmp_path: Path, signing_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    file = rules(tmp_path / "rules.yaml", alice=signing_key.with_suffix(".pub").read_text().strip())
    with monkeypatch.context() as patch:
        # The runtime may be imported meanwhile: it sees no file of the package.
        patch.setattr(OpenVINO, "load", lambda *_: pytest.fail("the engine was loaded"))
        with pytest.raises(EngineError, match="it is not signed"):
            mlflow_ngraph.load_model(package, trust=file)
        with pytest.raises(EngineError, match="need a signature"):
            mlflow_ngraph.load_model(f"models:/{logged.models['openvino']}", tracking_uri=logged.uri, trust=file)
    mlflow_ngraph.save_model(package, tmp_path / "signed", sign=signing_key)
    with mlflow_ngraph.load_model(tmp_path / "signed", trust=file) as engine:
        assert engine.manifest.spec.compiler == "openvino"
    (tmp_path / "signed" / "manifest.json.sig").unlink()
    with pytest.raises(EngineError, match="it is not signed"):
        mlflow_ngraph.load_model(tmp_path / "signed", trust=file)


def test_a_signature_does_not_fit_another_package(logged: Logged, tmp_path: Path, signing_key: Path) -> None:
    mlflow_ngraph.save_model(logged.packages["openvino"], tmp_path / "one", sign=signing_key)
    two = logged.copy("onnxruntime", tmp_path / "two")
    (two / "manifest.json.sig").write_bytes((tmp_path / "one/manifest.json.sig").read_bytes())
    open_package(two)
    with pytest.raises(EngineError, match="is not one of this manifest"):
        mlflow_ngraph.load_model(two)


def test_a_link_is_no_signature(logged: Logged, tmp_path: Path, signing_key: Path) -> None:
    mlflow_ngraph.save_model(logged.packages["openvino"], tmp_path / "one", sign=signing_key)
    place = tmp_path / "one/manifest.json.sig"
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EngineError, match="is a link"):
        mlflow_ngraph.load_model(tmp_path / "one")


def test_no_manifest_takes_a_signature_for_a_file(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    content = json.loads((package / "manifest.json").read_text())
    content["files"]["manifest.json.sig"] = "0" * 64
    with pytest.raises(EngineError, match="stands in its manifest's place"):
        open_package(package).manifest.parse(json.dumps(content).encode(), "it")
