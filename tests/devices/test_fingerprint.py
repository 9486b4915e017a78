from __future__ import annotations

import json
import socket
from dataclasses import replace

import pytest

from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.fingerprint import fingerprint, summary, versions


@pytest.mark.usefixtures("processes")
def test_it_is_json_and_stable() -> None:
    first, second = fingerprint(), fingerprint()
    assert json.loads(json.dumps(first)) == second
    assert first["processors"] >= 1


@pytest.mark.usefixtures("processes")
def test_the_name_of_the_host_is_not_given_away_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    here = fingerprint()
    assert socket.gethostname() not in json.dumps(here)
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    there = fingerprint()
    assert there["digest"] == here["digest"]
    assert there["host"] != here["host"]


@pytest.mark.usefixtures("processes")
def test_another_processor_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here, cpu = fingerprint(), probes.cpu()
    monkeypatch.setattr(probes, "cpu", lambda: replace(cpu, stepping="x"))
    assert fingerprint()["digest"] != here["digest"]


@pytest.mark.usefixtures("processes")
def test_settings_do_not_make_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = fingerprint()
    monkeypatch.setattr(probes, "governor", lambda: "powersave")
    there = fingerprint()
    assert there["digest"] == here["digest"]
    assert there["system"]["governor"] == "powersave"


@pytest.mark.usefixtures("processes")
def test_power_mode_and_sensors_do_not_make_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = fingerprint()
    assert "stolen_s" in here["system"]["sensors"]
    monkeypatch.setattr(probes, "power_mode", lambda: "15W")
    there = fingerprint()
    assert there["digest"] == here["digest"]
    assert there["system"]["power_mode"] == "15W"


@pytest.mark.usefixtures("processes")
def test_a_gpu_counts_and_its_driver_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (probes.Gpu("RTX 4070", 12282, driver, "8.9") for driver in ("550", "560"))
    plain = fingerprint()
    monkeypatch.setattr(probes, "gpus", lambda: (old,))
    before = fingerprint()
    monkeypatch.setattr(probes, "gpus", lambda: (new,))
    after = fingerprint()
    assert plain["digest"] != before["digest"] == after["digest"]
    assert after["system"]["gpu_driver"] == "560"
    assert summary(after).endswith("GiB, RTX 4070")


def test_versions_name_what_is_installed_only() -> None:
    found = versions()
    assert {"python", "numpy", "mlflow"} <= set(found)
    assert all(found.values())
