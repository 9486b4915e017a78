from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.devices.registry import DEVICES, create
from mlflow_ngraph.errors import DeviceError, UnknownNameError
from mlflow_ngraph.study import BASELINE

ROOT = Path(__file__).parents[2]
INTEL = replace(probes.cpu(), vendor="GenuineIntel", model="Intel(R) Xeon(R) Platinum 8488C")


@pytest.mark.parametrize("name", DEVICES.names())
def test_what_a_profile_says_of_itself_holds(name: str) -> None:
    profile = create(name)
    assert profile.name == name
    assert profile.compilers[0] == BASELINE
    assert set(profile.compilers) <= set(COMPILERS.names())
    if profile.project is not None:
        assert (ROOT / profile.project / "MLproject").is_file()


def test_an_unknown_device_is_told_from_a_mistyped_one() -> None:
    with pytest.raises(UnknownNameError, match="unknown device 'xenon': did you mean 'xeon'"):
        create("xenon")


def test_a_xeon_is_a_xeon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(probes, "cpu", lambda: INTEL)
    assert create("xeon").check() == ()


def test_another_x86_processor_may_stand_for_a_xeon_but_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(probes, "cpu", lambda: replace(INTEL, vendor="AuthenticAMD", model="AMD EPYC 9R14"))
    assert create("xeon").check() == ("this CPU is no Intel Xeon but AMD EPYC 9R14; numbers are those of this CPU",)


def test_an_arm_machine_is_no_xeon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(
        DeviceError, match=r"^device 'xeon' needs Linux on x86-64: this is Linux on aarch64; use device 'host'$"
    ):
        create("xeon").check()


@pytest.mark.usefixtures("processes")
def test_no_gpu_no_study_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        DeviceError, match=r"^device 'gpu' needs an NVIDIA GPU: none found \(nvidia-smi is not installed\)"
    ):
        create("gpu").check()


@pytest.mark.usefixtures("processes")
def test_a_gpu_serves(fake_tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    fake_tool("nvidia-smi", "NVIDIA GeForce RTX 4070, 12282, 555.42.06, 8.9\n")
    assert create("gpu").check() == ()


@pytest.mark.parametrize(
    ("board", "release", "warnings"),
    [
        ("NVIDIA Jetson Orin Nano Developer Kit", "R36 (release), REVISION: 4.3", []),
        ("NVIDIA Jetson AGX Xavier", "R35", ["this board is no Orin but NVIDIA Jetson AGX Xavier"]),
        ("NVIDIA Jetson Orin NX", "", ["no JetPack release found (/etc/nv_tegra_release)"]),
    ],
)
def test_a_jetson(board: str, release: str, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(probes, "device_tree_model", lambda: board)
    monkeypatch.setattr(probes, "jetpack_release", lambda: release)
    assert list(create("orin").check()) == warnings


def test_a_server_is_no_jetson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "device_tree_model", lambda: "")
    with pytest.raises(DeviceError, match="device 'orin' needs an NVIDIA Jetson"):
        create("orin").check()


def test_host_is_any_linux_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert create("host").check() == ()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(DeviceError, match="device 'host' needs Linux: this is Darwin"):
        create("host").check()


def test_a_profile_of_another_package() -> None:
    class Pi(DeviceProfile):
        name = "pi"
        summary = "a small board"
        compilers = ("identity",)

        def fitness(self):
            from mlflow_ngraph.devices.base import Fitness

            return Fitness(problems=("is not here", "is not there"))

    with pytest.raises(DeviceError, match=r"^device 'pi' is not here; and is not there$"):
        Pi().check()
