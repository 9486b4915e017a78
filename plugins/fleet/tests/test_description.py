from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlflow_ngraph.errors import FleetError, UnknownNameError
from mlflow_ngraph_fleet import description
from mlflow_ngraph_fleet.description import Device, Fleet, Head

HEAD = {"host": "10.0.0.1", "ssh": "lab@head"}


def read(tmp_path: Path, **content: Any) -> Fleet:
    file = tmp_path / "lab.yaml"
    file.write_text(
        yaml.safe_dump({"head": HEAD, "devices": {"xeon": {"host": "10.0.0.2"}}, **content}, sort_keys=False)
    )
    return description.load(file)


def test_a_short_description_is_enough(tmp_path: Path) -> None:
    fleet = read(tmp_path, devices={"xeon": {"host": "a"}, "kitchen": {"host": "b"}, "orin": {"host": "c"}})
    assert fleet.name == "lab"
    assert [fleet.profile(name) for name in fleet.devices] == ["xeon", "host", "orin"]
    assert fleet.chosen(["all"]) == ["xeon", "kitchen", "orin"]
    assert fleet.chosen(["orin", "xeon"]) == ["xeon", "orin"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"devices": {"xeon": {"hots": "a"}}}, "devices.xeon.hots: unknown key: did you mean 'host'?"),
        ({"devices": {}}, "devices: "),
        ({"engine": "ray", "head": None}, "engine ray needs a head"),
        ({"engine": "cron"}, "engine: expected"),
        ({"devices": {"all": {"host": "a"}}}, "'all' stands for every device"),
        ({"devices": {"a": {"host": "a", "profile": "xoen"}}}, "did you mean 'xeon'?"),
        ({"devices": {"a": {"host": "a", "python": "/p", "requirements": ["x"]}}}, "keep one"),
        *(
            ({"devices": {"a": {"host": "a", key: {name: "x"}}}}, f"devices.a.{key}: {name} looks like a secret")
            for key in ("env", "environment")
            for name in ("MLFLOW_TRACKING_PASSWORD", "SECRET", "AWS_ACCESS_KEY_ID", "MY_PW", "PGPASS", "NETRC_AUTH")
        ),
        *(
            ({"devices": {"a": {"host": "a", key: value}}}, f"devices.a.{key}: expected no user, password or token")
            for key, value in (
                ("tracking_uri", "http://me:pw@server"),
                ("env", {"DB": "postgres://me:pw@host/x"}),
                ("environment", {"HTTPS_PROXY": "http://me:pw@proxy"}),
                ("pip_options", ["--quiet", "--index-url=https://me:pw@index"]),
                ("requirements", ["model @ git+https://me:pw@git.lab/model"]),
                ("ssh_options", {"ProxyCommand": "connect --password=hunter22 %h"}),
                ("labels", {"owner": "ghp_0123456789abcdefghij"}),
            )
        ),
        ({"devices": {"a": {"host": "a", "ssh": "-oProxyCommand=x"}}}, "expected user@host"),
        ({"devices": {"a": {"host": "a", "host_key": "AAAA"}}}, "expected a public host key"),
        ({"devices": {"a": {"host": "a", "ssh_options": {"StrictHostKeyChecking": "no"}}}}, "host keys are pinned"),
        ({"head": {**HEAD, "address": "http://me:pw@head"}}, "head.address: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    with pytest.raises(FleetError) as raised:
        read(tmp_path, **content)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "pw@" not in str(raised.value)


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'xeon'"):
        read(tmp_path).chosen(["xoen"])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="--fleet FILE"):
        description.load(tmp_path / "none.yaml")


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o640)
    with pytest.raises(FleetError, match="chmod 600"):
        description.read_secret(file)
    file.chmod(0o600)
    assert description.read_secret(file) == "secret"


def test_what_a_fleet_is_comes_back_from_json(tmp_path: Path) -> None:
    fleet = read(tmp_path, devices={"a": {"host": "a", "labels": {"rack": "3"}, "tracking_uri": "http://server:5000"}})
    again = description.parse(description.to_plain(fleet), fleet.origin)
    assert (again, again.origin) == (fleet, fleet.origin)


def test_every_key_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/run-a-fleet.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+)`", page))
    for name in {*Fleet.model_fields, *Device.model_fields} - {"head", "devices"}:
        assert name in named, name
    for name in Head.model_fields:
        assert f"head.{name}" in named or name in Device.model_fields, name
