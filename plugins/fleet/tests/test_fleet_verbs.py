"""Requests about a fleet that are wrong: one line, and nothing is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.cli.app import run

FLEET = "head: {host: h}\ndevices: {xeon: {host: x}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    (tmp_path / "lab.yaml").write_text(FLEET)
    (tmp_path / "slurm.yaml").write_text("engine: slurm\nshared: s\ndevices: {xeon: {host: x}}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["benchmark", "smoke", "--device", "all"],
            "no file fleet.yaml: name the description of the fleet with --fleet FILE",
        ),
        (["benchmark", "smoke", "--device", "xeon,orin"], "no file fleet.yaml"),
        (["benchmark", "smoke", "--detach"], "no file fleet.yaml"),
        (["benchmark", "smoke", "--fleet", "lab.yaml", "--device", "xoen"], "did you mean 'xeon'?"),
        (["benchmark", "smoke", "--fleet", "lab.yaml", "--dry-run"], "--dry-run is for this machine"),
        (["benchmark", "smok", "--fleet", "lab.yaml"], "did you mean 'smoke'?"),
        (["fleet", "up"], "no file fleet.yaml"),
        (["fleet", "up", "--fleet", "slurm.yaml"], "engine slurm is not started by this command"),
        (["fleet", "attach"], "no study over several devices was begun here"),
        (["fleet", "logs", "mine"], "no study over several devices is called 'mine'"),
        (["fleet", "dwon"], "did you mean 'down'?"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(arguments)
    err = capsys.readouterr().err
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("device", "said"), [("orin", "needs an NVIDIA Jetson"), ("lab-7", "unknown device 'lab-7'")])
def test_a_device_that_this_machine_is_not_may_be_one_of_the_fleet(
    folder: Path, device: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for described, hint in (
        ("", False),
        (FLEET, False),
        ("devices: [", False),
        (f"head: {{host: h}}\ndevices: {{{device}: {{host: x}}}}\n", True),
    ):
        (folder / "fleet.yaml").write_text(described)
        assert run(["benchmark", "smoke", "--device", device]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
        assert (f"fleet.yaml has a device '{device}': to run there, add --fleet fleet.yaml" in err) is hint


def test_a_machine_that_ssh_does_not_reach_gets_a_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "hand.yaml").write_text("ray: 2.60.0\ntoken_file: hand.token\n" + FLEET)
    assert run(["fleet", "up", "--fleet", "hand.yaml"]) == 0
    out = capsys.readouterr().out
    token = (folder / "hand.token").read_text().strip()
    assert (folder / "hand.token").stat().st_mode & 0o077 == 0
    assert token not in out
    head, node = (line for line in out.replace(" \\\n", " ").splitlines() if "ray start" in line)
    assert "--head" in head
    assert "--dashboard-host=127.0.0.1" in head
    assert "RAY_AUTH_MODE=token" in node
    assert "--address=h:6379" in node
