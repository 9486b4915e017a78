"""A lab of three hosts: brought up, used and taken down by the commands that a user types."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Kind, Tag
from tests.support.lab import Host, Lab
from tests.support.lab_fleet import Fleet, described, pids
from tests.support.scripted_study import interpreter


@pytest.fixture(scope="module")
def fleet(lab: Lab, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    home = tmp_path_factory.mktemp("fleet")
    (home / "mlflow.db").write_bytes(sqlite_template.read_bytes())
    with described(lab, home) as running:
        up = running.run("fleet", "up")
        assert up.returncode == 0, up.stderr + up.stdout
        yield running
        down = running.run("fleet", "down")
        assert down.returncode == 0, down.stderr + down.stdout
        assert down.stdout.count("nothing is left") == 3
        for host in lab.hosts.values():
            processes = host.run("ps", "-ww", "-eo", "args")
            assert "sshd" in processes
            assert "ray" not in processes, processes
            assert "mlflow_ngraph" not in processes, processes


def test_one_study_on_two_devices_ends_in_one_comparison(fleet: Fleet) -> None:
    ran = fleet.run("benchmark", "smoke", "--device", "all", "--json")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    outcome = json.loads(ran.stdout)
    assert {device["device"]: device["code"] for device in outcome["devices"]} == {"xeon": 0, "orin": 0}
    compared = {
        value["column"][0] if "column" in value else value["device"] for value in outcome["comparison"]["values"]
    }
    assert compared == {"xeon", "host"}

    client = connection.connect(fleet.tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (whole,) = client.search_runs(experiments, f"tags.`{Tag.KIND}` = '{Kind.FLEET}'")
    children = client.search_runs(experiments, f"tags.`{Tag.PARENT}` = '{whole.info.run_id}'")
    assert whole.info.status == "FINISHED"
    assert {child.data.tags[Tag.KIND] for child in children} == {Kind.STUDY}
    assert {child.data.tags[Tag.DEVICE] for child in children} == {"xeon", "host"}
    assert {child.info.status for child in children} == {"FINISHED"}
    assert not client.search_runs(experiments, "attributes.status = 'RUNNING'")

    token = (fleet.file.parent / "lab.token").read_text().strip()
    assert token not in ran.stderr + ran.stdout
    for run in client.search_runs(experiments):
        assert token not in str(run.to_dictionary())
    for host in fleet.lab.hosts.values():
        assert token not in host.run("ps", "-ww", "-eo", "args")


def test_the_engine_stands_still_while_a_slice_is_timed(fleet: Fleet) -> None:
    study = fleet.start("benchmark", "smoke", "--device", "all", "--fresh")
    host, seen = fleet.lab.hosts["orin"], set[str]()
    while study.poll() is None:
        seen.update(host.run("ps", "-C", "raylet", "-o", "stat=").split())
    assert study.returncode == 0
    assert any(state.startswith("T") for state in seen), seen
    assert any(not state.startswith("T") for state in seen), seen
    afterwards = host.run("ps", "-eo", "stat=").split()
    assert not any(state.startswith("T") for state in afterwards)


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    """What a verb says up to a line with this text."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return said
    pytest.fail("".join(said))


def await_none(host: Host, program: str) -> None:
    deadline = time.monotonic() + 30
    while pids(host, program):
        assert time.monotonic() < deadline, host.run("ps", "-ww", "-eo", "pid,args")
        time.sleep(0.2)


def test_an_interrupt_ends_a_study_on_all_devices(fleet: Fleet) -> None:
    study = fleet.start("benchmark", "smoke", "--device", "all", "--fresh")
    until(study, "preparing")
    study.send_signal(signal.SIGINT)
    out, err = study.communicate(timeout=180)
    assert study.returncode == 130, err + out
    for name in ("xeon", "orin"):
        await_none(fleet.lab.hosts[name], "mlflow_ngraph")
    client = connection.connect(fleet.tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert not client.search_runs(experiments, "attributes.status = 'RUNNING'")
    assert client.search_runs(experiments, f"tags.`{Tag.KIND}` = '{Kind.FLEET}' AND attributes.status = 'KILLED'")


def test_a_study_survives_the_death_of_its_node_while_its_client_is_away(fleet: Fleet) -> None:
    left = fleet.run("benchmark", "smoke", "--device", "xeon", "--fresh", "--detach")
    assert left.returncode == 0, left.stderr
    host = fleet.lab.hosts["xeon"]
    study = fleet.start("fleet", "attach", "--json")
    until(study, "xeon: preparing")
    raylets = pids(host, "raylet/raylet")
    assert raylets
    host.run("kill", "-9", *raylets)
    until(study, "taking it there again")
    out, err = study.communicate(timeout=400)
    assert study.returncode == 0, err + out
    (device,) = json.loads(out)["devices"]
    client = connection.connect(fleet.tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (recorded,) = client.search_runs(
        experiments, f"tags.`{Tag.KIND}` = '{Kind.STUDY}' AND tags.`{Tag.STUDY_ID}` = '{device['study_id']}'"
    )
    assert recorded.info.status == "FINISHED"
    await_none(host, "mlflow_ngraph")


def test_studies_of_one_device_take_turns_in_order(fleet: Fleet, tmp_path: Path) -> None:
    described = yaml.safe_load(fleet.file.read_text())
    home = fleet.lab.directory / "scripted"
    home.mkdir()
    xeon = {**described["devices"]["xeon"], "home": str(home), "env": {"SCENARIO": "measures"}}
    described["devices"] = {"xeon": {**xeon, "python": interpreter(tmp_path / "bin")}}
    described["token_file"] = str(fleet.file.parent / "lab.token")
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(described))
    for _ in range(4):
        left = fleet.run("benchmark", "smoke", "--fleet", str(file), "--detach")
        assert left.returncode == 0, left.stderr
    attached = fleet.run("fleet", "attach", "--json")
    assert attached.returncode == 0, attached.stderr
    lines = [line.split() for line in (home / "measured").read_text().splitlines()]
    assert [what for _, what in lines] == ["begin", "end"] * 4
    assert [name for name, _ in lines[::2]] == sorted({name for name, _ in lines})
    assert lines[-1][0] == json.loads(attached.stdout)["fleet_study"]


def test_status_says_who_has_joined(fleet: Fleet) -> None:
    asked = fleet.run("fleet", "status", "--json")
    assert asked.returncode == 0, asked.stderr
    rows = {row["device"]: row for row in json.loads(asked.stdout)["devices"]}
    assert {name: row["engine"] for name, row in rows.items()} == {"xeon": "alive", "orin": "alive"}
    assert {name: row["holder"] for name, row in rows.items()} == {"xeon": "nobody", "orin": "nobody"}


def test_the_job_api_is_closed(fleet: Fleet) -> None:
    head = fleet.lab.hosts["head"]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{head.address}:8265/api/jobs/", timeout=5)
    for method in ("GET", "POST"):
        said = head.run(
            *(
                "curl",
                "-s",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-X",
                method,
                "-H",
                "Content-Type: application/json",
            ),
            *("-d", '{"entrypoint": "id"}', "http://127.0.0.1:8265/api/jobs/"),
        )
        assert said == "401"


def test_doctor_finds_nothing_wrong(fleet: Fleet) -> None:
    asked = fleet.run("fleet", "doctor")
    assert asked.returncode == 0, asked.stdout + asked.stderr
