"""Nothing of an engine on a server is used unless its manifest came through the one door, whoever asks for it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mlflow_ngraph
from mlflow_ngraph.analysis.ranking import Candidate, Ranking
from mlflow_ngraph.engines import signing, trust
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.release.best import answer
from mlflow_ngraph.release.pulling import pull_engine
from mlflow_ngraph.tracking.download import Remote
from mlflow_ngraph.tracking.shared_engines import ServerEngines
from mlflow_ngraph.tracking.trusted import trusted_manifest
from tests.support.keys import write_key
from tests.support.logged import Logged
from tests.support.published import directory_of, publish, rewrite
from tests.support.sources import PACKAGES

PACKAGE = "mlflow_ngraph"
DOOR = f"{PACKAGE}.tracking.trusted"

ONLY_WITHIN = {
    # One of the steps of the door taken alone lets somebody forget the others. An archive of studies is signed as a whole.
    f"{PACKAGE}.engines.trust.require": {DOOR, f"{PACKAGE}_archives.importing"},
    f"{PACKAGE}.engines.signing.signer": {f"{PACKAGE}.engines.trust"},
    f"{PACKAGE}.engines.package.read_signature": {f"{PACKAGE}.engines.trust"},
    f"{PACKAGE}.tracking.signature_files.fetch": {DOOR},
    f"{PACKAGE}.tracking.signature_files.bring": {f"{PACKAGE}.cli.verify"},
    # Manifests that are read to describe an engine, to sign it, or to say what is wrong with it.
    f"{PACKAGE}.tracking.download.manifest": {
        DOOR,
        f"{PACKAGE}_engines.logged_engine",
        f"{PACKAGE}.tracking.manifests",
        f"{PACKAGE}.tracking.signature_files",
    },
    # To check an engine that is promoted or signed; nothing of it is loaded.
    f"{PACKAGE}.tracking.download.pull": {f"{PACKAGE}.cli.verify", f"{PACKAGE}_engines.logged_engine"},
}
"""Who may use what, besides the module that it is in."""
FILES = {f"{PACKAGE}.tracking.download.fill", f"{PACKAGE}.tracking.download.files"}
"""What brings files of an engine: only to who has been through the door."""
Refusals = Callable[[Remote, Path | str], dict[str, str]]


@pytest.fixture(autouse=True)
def _no_rules_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))


@pytest.fixture
def published(
    logged: Logged, sqlite_uri: str, signing_key: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[bool], Remote]:
    """Logs an engine to a server of one's own, signed or not."""

    def log(signed: bool) -> Remote:
        return publish(logged.packages["openvino"], sqlite_uri, monkeypatch, sign=signing_key if signed else None)

    return log


@pytest.fixture
def refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusals:
    """Asks for an engine in all ways that there are, and returns why none of them gives it."""
    place = tmp_path / "place"

    def pull(remote: Remote, rules: Path | str) -> None:
        pull_engine(remote, place, trust=rules)

    def load(remote: Remote, rules: Path | str) -> None:
        mlflow_ngraph.load_model(f"models:/{remote.model_id}", tracking_uri=remote.tracking_uri, trust=rules)

    def best(remote: Remote, rules: Path | str) -> None:
        row = {"model_id": remote.model_id, "tracking_uri": remote.tracking_uri}
        row |= {"compiler": "openvino", "compiler_label": "openvino"}
        answer(Ranking((Candidate(row, "throughput"),), {}, (), (), ()), {}, trust.load(rules))

    def study(remote: Remote, rules: Path | str) -> None:
        manifest = Manifest.parse((directory_of(remote) / "manifest.json").read_bytes(), "the manifest")
        monkeypatch.setenv(trust.VARIABLE, str(rules))
        said: list[str] = []
        engines = ServerEngines(remote.tracking_uri)
        if engines.fetch(manifest.compiled.key, manifest.spec.requires, place, said.append) is None:
            raise EngineError(said[0])  # a study goes on and compiles

    def ask(remote: Remote, rules: Path | str) -> dict[str, str]:
        said = {}
        for name, face in (("pull", pull), ("load", load), ("best", best), ("study", study)):
            with pytest.raises(EngineError) as error:
                face(remote, rules)
            assert not place.exists()
            said[name] = str(error.value)
        return said

    return ask


def rules(path: Path, signer: str) -> Path:
    path.write_text(f"signers: {{alice: '{signer}'}}\n")
    return path


@pytest.fixture
def believes_alice(tmp_path: Path, signing_key: Path) -> Path:
    """Rules by which only an engine that is signed with the key may be used."""
    return rules(tmp_path / "alice.yaml", signing_key.with_suffix(".pub").read_text().strip())


def assert_all(refusals: dict[str, str], reason: str) -> None:
    assert {face for face, said in refusals.items() if reason in said} == {"pull", "load", "best", "study"}, refusals


def test_what_is_believed_comes_with_why(published: Callable[[bool], Remote], believes_alice: Path) -> None:
    remote = published(True)
    offer = trusted_manifest(remote, trust.load(believes_alice))
    assert offer.trusted.signer == "alice"
    assert offer.manifest == Manifest.parse(offer.content, "the manifest")
    assert offer.signature == (directory_of(remote) / "manifest.json.sig").read_bytes()
    unsigned = trusted_manifest(published(False), trust.EVERYTHING)
    assert (unsigned.signature, unsigned.trusted.signer) == (None, None)


def test_an_engine_that_nobody_signed_is_refused(
    published: Callable[[bool], Remote], refusals: Refusals, believes_alice: Path
) -> None:
    said = refusals(published(False), believes_alice)
    assert_all(said, "need a signature by a known signer (alice): it is not signed")


def test_an_engine_by_somebody_else_is_refused(
    published: Callable[[bool], Remote], refusals: Refusals, tmp_path: Path
) -> None:
    others = rules(tmp_path / "others.yaml", write_key(tmp_path / "other"))
    assert_all(refusals(published(True), others), "whom no rule names")


def test_a_source_that_is_refused_gives_nothing(
    published: Callable[[bool], Remote], refusals: Refusals, tmp_path: Path
) -> None:
    (tmp_path / "refused.yaml").write_text("sources: [{uri: '*', trust: refused}]\n")
    assert_all(refusals(published(True), tmp_path / "refused.yaml"), "are not trusted: the rule for * refuses it")


def test_a_falsified_manifest_is_refused_even_where_everything_is_believed(
    published: Callable[[bool], Remote], refusals: Refusals
) -> None:
    remote = published(True)
    rewrite(directory_of(remote), lambda manifest: manifest["spec"]["target"].update(precision="bf16"))
    assert_all(refusals(remote, trust.ANY), "is not what was logged")


def test_a_falsified_signature_is_refused_even_where_everything_is_believed(
    published: Callable[[bool], Remote], refusals: Refusals, signing_key: Path
) -> None:
    remote = published(True)
    forged = signing.sign(b"another manifest", signing.load_key(signing_key))
    (directory_of(remote) / "manifest.json.sig").write_bytes(forged)
    assert_all(refusals(remote, trust.ANY), "is not one of this manifest")


def test_a_signature_that_is_gone_is_not_the_same_as_none(
    published: Callable[[bool], Remote], refusals: Refusals
) -> None:
    remote = published(True)
    (directory_of(remote) / "manifest.json.sig").unlink()
    assert_all(refusals(remote, trust.ANY), "the signature of engine")


def test_a_server_that_lies_about_the_digest_is_found_out_by_the_signature(
    published: Callable[[bool], Remote], believes_alice: Path
) -> None:
    remote = published(True)
    directory = directory_of(remote)
    rewrite(directory, lambda manifest: manifest["spec"]["target"].update(precision="bf16"))
    digest = sha256(directory / "manifest.json")
    with pytest.raises(EngineError, match="is not one of this manifest"):
        trusted_manifest(replace(remote, digest=digest), trust.load(believes_alice))


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def used(tree: ast.AST) -> set[str]:
    """Whole names of everything that a module imports, and of what it takes from modules that it has imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name): alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not followed here"
            assert all(alias.name != "*" for alias in node.names), "nor are imports of everything"
            names |= {(alias.asname or alias.name): f"{node.module}.{alias.name}" for alias in node.names}
    whole = set(names.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            head, _, rest = text.partition(".")
            whole.add(f"{names[head]}.{rest}" if head in names else text)
    return whole


@pytest.mark.usefixtures("compilers")
def test_nobody_goes_around_the_door() -> None:
    around = []
    for name, tree in modules():
        taken = used(tree)
        for step, allowed in ONLY_WITHIN.items():
            if step in taken and name not in {*allowed, step.rpartition(".")[0]}:
                around.append(f"{name} uses {step}")
        if taken & FILES and f"{DOOR}.trusted_manifest" not in taken and name != f"{PACKAGE}.tracking.download":
            around.append(f"{name} brings files of engines without {DOOR}.trusted_manifest")
    assert around == []


@pytest.mark.parametrize(
    "statements",
    [
        "from mlflow_ngraph.engines import trust\ntrust.require(b'', None, '', rules)",
        "from mlflow_ngraph.engines import trust as trusting\ncheck = trusting.require",
        "def late():\n    from mlflow_ngraph.engines.trust import require as ok",
        "import mlflow_ngraph.engines.trust\nmlflow_ngraph.engines.trust.require(b'', None, '', rules)",
        "import mlflow_ngraph.engines.trust as trusting\ntrusting.require(b'', None, '', rules)",
    ],
)
def test_every_way_to_go_around_it_is_seen(statements: str) -> None:
    assert f"{PACKAGE}.engines.trust.require" in used(ast.parse(statements))


def test_who_may_take_a_step_still_takes_it() -> None:
    """What is allowed and no longer done would let it come back unseen."""
    taken = {name: used(tree) for name, tree in modules()}
    idle = [(step, name) for step, allowed in ONLY_WITHIN.items() for name in allowed if step not in taken[name]]
    assert idle == []


@pytest.mark.parametrize("location", ["file:///etc", "http://elsewhere/1", "s3://bucket/1"])
def test_files_that_are_elsewhere_need_a_rule_of_their_own(location: str) -> None:
    remote = Remote("https://lab", location, "m-1", None, "0" * 64)
    rules = trust.Rules(sources=(trust.Source(uri="https://lab", trust="allowed"),))
    with pytest.raises(EngineError, match=f"engines from {location} are not trusted: no rule allows it"):
        trusted_manifest(remote, rules)
    assert Remote("https://lab", "mlflow-artifacts:/1", "m-1", None, None).sources == ("https://lab",)
