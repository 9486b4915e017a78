"""A signature says whose a manifest is, and nothing but the very signature of the very manifest passes for one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mlflow_ngraph.engines import signing
from mlflow_ngraph.errors import EngineError, UsageError
from tests.support.keys import write_key

MANIFEST = b'{"schema_version": 1}\n'
needs_openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")


def signed(key: Path) -> bytes:
    return signing.sign(MANIFEST, signing.load_key(key))


def blob(key: Path) -> bytes:
    return signing.public_blob(key.with_suffix(".pub").read_text())


def test_a_signature_tells_the_key(signing_key: Path) -> None:
    assert signing.signer(MANIFEST, signed(signing_key)) == blob(signing_key)
    assert signing.fingerprint(blob(signing_key)).startswith("SHA256:")


def test_another_manifest_is_not_the_one_that_was_signed(signing_key: Path) -> None:
    with pytest.raises(EngineError, match="is not one of this manifest"):
        signing.signer(MANIFEST + b" ", signed(signing_key))


def test_no_changed_byte_passes(signing_key: Path) -> None:
    whole = signed(signing_key)
    for place, byte in enumerate(whole):
        changed = whole[:place] + bytes([byte ^ 1]) + whole[place + 1 :]
        if changed.split() == whole.split():
            continue  # white space between the lines
        with pytest.raises(EngineError):
            signing.signer(MANIFEST, changed)


def test_no_part_of_it_passes(signing_key: Path) -> None:
    whole = signed(signing_key)
    for length in range(len(whole) - 1):
        with pytest.raises(EngineError):
            signing.signer(MANIFEST, whole[:length])
    with pytest.raises(EngineError, match="cut off"):
        signing.signer(MANIFEST, whole * 100)


@pytest.mark.usefixtures("processes")
@needs_openssh
def test_openssh_reads_our_signatures(signing_key: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json.sig").write_bytes(signed(signing_key))
    check = ["ssh-keygen", "-Y", "check-novalidate", "-n", signing.NAMESPACE, "-s", "manifest.json.sig"]
    done = subprocess.run(check, input=MANIFEST, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert signing.fingerprint(blob(signing_key)).encode() in done.stdout


@pytest.mark.usefixtures("processes")
@needs_openssh
def test_we_read_those_of_openssh(signing_key: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(MANIFEST)
    for namespace, fine in ((signing.NAMESPACE, True), ("file", False)):
        command = ["ssh-keygen", "-Y", "sign", "-n", namespace, "-f", str(signing_key), "manifest.json"]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        signature = (tmp_path / "manifest.json.sig").read_bytes()
        (tmp_path / "manifest.json.sig").unlink()
        if fine:
            assert signing.signer(MANIFEST, signature) == blob(signing_key)
            continue
        with pytest.raises(EngineError, match="was made for 'file'"):
            signing.signer(MANIFEST, signature)


@pytest.mark.usefixtures("processes")
@needs_openssh
def test_a_key_with_a_passphrase_is_no_surprise(tmp_path: Path) -> None:
    path = tmp_path / "protected"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "a secret", "-f", str(path)]
    subprocess.run(make, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    with pytest.raises(UsageError, match=r"protected by a passphrase|pip install bcrypt"):
        signing.load_key(path)
    try:
        found = signing.load_key(path, lambda: "a secret")
    except UsageError as error:
        assert "pip install bcrypt" in str(error)  # noqa: PT017 - either is right, as long as it says so
    else:
        assert signing.public_blob(signing.public_text(found)) == signing.public_blob(
            path.with_suffix(".pub").read_text()
        )


def test_what_is_no_key_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the key"):
        signing.load_key(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot read the key /dev/zero: it has more than 16384 bytes"):
        signing.load_key(Path("/dev/zero"))
    (tmp_path / "text").write_text("no key")
    with pytest.raises(UsageError, match="is no private key"):
        signing.load_key(tmp_path / "text")
    other = generate_private_key(SECP256R1())
    (tmp_path / "ecdsa").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(UsageError, match="is no Ed25519 key: make one with ssh-keygen"):
        signing.load_key(tmp_path / "ecdsa")


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-rsa AAAA", "ssh-ed25519 AAAA", "ssh-ed25519 %%%%"])
def test_what_is_no_public_key_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="public key"):
        signing.public_blob(text)
    assert len(signing.public_blob(write_key(tmp_path / "key"))) == 51
