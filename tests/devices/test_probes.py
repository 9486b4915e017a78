from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.devices import probes

XEON = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8488C
stepping\t: 8
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu sse4_1 avx avx2 fma avx512f avx512_vnni amx_tile amx_int8 amx_bf16

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8488C
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu

processor\t: 2
vendor_id\t: GenuineIntel
physical id\t: 1
core id\t\t: 0
"""
JETSON = """\
processor\t: 0
BogoMIPS\t: 62.50
Features\t: fp asimd evtstrm aes asimdhp asimddp bf16x
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd42
CPU revision\t: 1

processor\t: 1
Features\t: fp asimd
"""


@pytest.fixture
def cpuinfo(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(request.param)
    return path


@pytest.mark.parametrize("cpuinfo", [XEON], indirect=True)
def test_a_xeon_with_two_sockets_and_two_threads_a_core(cpuinfo: Path) -> None:
    cpu = probes.cpu(cpuinfo)
    assert (cpu.sockets, cpu.cores, cpu.threads) == (2, 2, 3)
    assert cpu.isa == ("sse4_1", "avx", "fma", "avx2", "avx512f", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16")
    assert (cpu.vendor, cpu.family, cpu.model_number, cpu.stepping) == ("GenuineIntel", "6", "143", "8")
    assert cpu.label == "Intel(R) Xeon(R) Platinum 8488C"


@pytest.mark.parametrize("cpuinfo", [JETSON], indirect=True)
def test_an_arm_board_has_no_model_name(cpuinfo: Path) -> None:
    cpu = probes.cpu(cpuinfo)
    assert (cpu.vendor, cpu.threads, cpu.isa) == ("ARM", 2, ("asimd", "asimdhp", "asimddp"))
    assert cpu.model


def test_a_machine_that_tells_nothing_still_has_a_processor(tmp_path: Path) -> None:
    cpu = probes.cpu(tmp_path / "missing")
    assert (cpu.cores, cpu.threads, cpu.isa) == (1, 1, ())


@pytest.mark.usefixtures("processes")
def test_gpus_as_the_driver_lists_them(fake_tool) -> None:
    fake_tool("nvidia-smi", "NVIDIA GeForce RTX 4070, 12282, 555.42.06, 8.9\nOrin (nvgpu), [N/A], 540.4.0, 8.7\n")
    first, second = probes.gpus()
    assert first == probes.Gpu("NVIDIA GeForce RTX 4070", 12282, "555.42.06", "8.9")
    assert second.memory_mib == 0
    assert probes.gpu_obstacle() == ""


TWO = "NVIDIA A100, 40960, 555.42.06, 8.0\nNVIDIA L4, 23034, 555.42.06, 8.9\n"


@pytest.mark.usefixtures("processes")
def test_the_first_gpu_is_the_one_that_cuda_counts_first(fake_tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_tool("nvidia-smi", TWO)
    assert probes.gpu() == probes.gpus()[0]
    asked: list[list[str]] = []

    def answer(command: list[str]) -> str:
        asked.append(command)
        return TWO.splitlines()[1]

    monkeypatch.setattr(probes, "_output", answer)
    for visible, identifier in (("1", "--id=1"), ("GPU-8a1f, 0", "--id=GPU-8a1f")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = probes.gpu()
        assert found is not None
        assert found.name == "NVIDIA L4"
        assert identifier in asked[-1]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("visible", ["", "-1"])
def test_gpus_can_be_hidden(visible: str, fake_tool, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool("nvidia-smi", TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert probes.gpu() is None
    assert probes.gpu_obstacle() == f"CUDA_VISIBLE_DEVICES={visible} leaves none"


@pytest.mark.usefixtures("processes")
def test_a_jetson_has_a_gpu_without_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(probes, "device_tree_model", lambda: "NVIDIA Jetson Orin Nano Developer Kit")
    monkeypatch.setattr(probes, "jetpack_release", lambda: "R36 (release), REVISION: 4.3")
    found = probes.gpu()
    assert found == probes.Gpu("NVIDIA Jetson Orin Nano Developer Kit", 0, "R36 (release), REVISION: 4.3", "8.7")
    assert probes.gpu_obstacle() == ""


@pytest.mark.usefixtures("processes")
def test_the_board_tells_what_its_driver_does_not(fake_tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "device_tree_model", lambda: "NVIDIA Jetson AGX Orin")
    fake_tool("nvidia-smi", "Orin (nvgpu), [N/A], 540.4.0, [N/A]\n")
    assert [gpu.compute_capability for gpu in probes.gpus()] == ["8.7"]


@pytest.mark.usefixtures("processes")
def test_a_driver_that_does_not_work_is_no_gpu(fake_tool) -> None:
    fake_tool("nvidia-smi", "NVIDIA-SMI has failed", code=9)
    assert probes.gpus() == ()
    assert probes.gpu_obstacle() == "nvidia-smi lists none"


def test_a_board_ends_its_name_with_a_zero_byte(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"NVIDIA Jetson Orin Nano Developer Kit\x00")
    (tmp_path / "release").write_text("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\nmore\n")
    assert probes.device_tree_model(tmp_path / "model") == "NVIDIA Jetson Orin Nano Developer Kit"
    assert probes.jetpack_release(tmp_path / "release") == "R36 (release), REVISION: 4.3"


MODES = """\
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=2 NAME=MAXN_SUPER >
< PM_CONFIG DEFAULT=0 >
"""


@pytest.mark.parametrize(
    ("status", "modes", "mode"),
    [
        ("pmode:0002 fmode:quiet", MODES, "MAXN_SUPER"),
        ("pmode:0000", MODES, "15W"),
        ("pmode:0007", MODES, "mode 7"),
        ("pmode:0001", "", "mode 1"),
    ],
)
def test_the_power_mode_of_a_jetson(tmp_path: Path, status: str, modes: str, mode: str) -> None:
    (tmp_path / "status").write_text(status)
    (tmp_path / "modes").write_text(modes)
    assert probes.power_mode(tmp_path / "status", tmp_path / "modes") == mode


@pytest.mark.usefixtures("processes")
def test_a_power_mode_that_only_the_tool_tells(tmp_path: Path, fake_tool) -> None:
    assert probes.power_mode(tmp_path / "missing", tmp_path / "missing") == ""
    fake_tool("nvpmodel", "NV Power Mode: MODE_15W\n0\n")
    assert probes.power_mode(tmp_path / "missing", tmp_path / "missing") == "MODE_15W"
