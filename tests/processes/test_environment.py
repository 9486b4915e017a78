"""What a shell has set reaches no lane, or is told."""

import pytest

from mlflow_ngraph.processes import environment

CRIPPLING = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": "AVX2",
    "THP_MEM_ALLOC_ENABLE": "1",
    "LRU_CACHE_CAPACITY": "1",
    "TORCH_LOGS": "+all",
    "TORCHINDUCTOR_CPP_SIMDLEN": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "PYTORCH_JIT": "0",
    "OMP_PROC_BIND": "close",
    "GOMP_CPU_AFFINITY": "0",
    "KMP_BLOCKTIME": "infinite",
    "ORT_DISABLE_ALL": "1",
    "OV_CPU_DISABLE": "1",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "LD_BIND_NOT": "1",
    "PYTHONTRACEMALLOC": "25",
    "PYTHONMALLOC": "debug",
}


@pytest.fixture
def cleared(monkeypatch):
    for name in environment.RECORDED:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", CRIPPLING)
def test_what_makes_one_runtime_slower_is_gone(name, tmp_path, monkeypatch):
    clean = environment.of_threads(2, tmp_path)
    monkeypatch.setenv(name, CRIPPLING[name])
    assert environment.of_threads(2, tmp_path) == clean


def test_an_engine_sees_what_runtimes_read_and_nothing_else(monkeypatch, cleared):
    kept = {"CUDA_VISIBLE_DEVICES": "0", "LC_ALL": "C", "PATH": "/bin", "PYTHONPATH": "/p", "XDG_CACHE_HOME": "/c"}
    dropped = {"INTERNAL_HOST": "db.lab", "SENTRY_RELEASE": "1", "PATHS": "x", "BUILD_JSON": "{}"}
    for name, value in {**kept, **dropped}.items():
        monkeypatch.setenv(name, value)
    found = environment.of_threads(1, plain=True)
    assert kept.items() <= found.items()
    assert not dropped.keys() & found.keys()
    assert dropped.keys() <= environment.of_threads(1).keys()


@pytest.mark.parametrize("name", ["TORCH_HOME", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "HOME"])
def test_what_says_where_things_are_stays_and_is_not_told(name, tmp_path, monkeypatch, cleared):
    monkeypatch.setenv(name, "/somewhere")
    assert environment.of_threads(2, tmp_path)[name] == "/somewhere"
    assert environment.recorded_variables() == {}


@pytest.mark.parametrize("name", environment.RECORDED)
def test_what_programs_may_need_to_start_stays_and_is_told(name, tmp_path, monkeypatch, cleared):
    monkeypatch.setenv(name, "/usr/lib/libjemalloc.so.2")
    assert environment.of_threads(2, tmp_path)[name] == "/usr/lib/libjemalloc.so.2"
    assert environment.recorded_variables() == {name: "/usr/lib/libjemalloc.so.2"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MLFLOW_TRACKING_PASSWORD", "x"),
        ("MLFLOW_TRACKING_URI", "http://lab:5000"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AZURE_STORAGE_CONNECTION_STRING", "x"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/key.json"),
        ("HF_TOKEN", "x"),
        ("WANDB_API_KEY", "x"),
        ("PGPASSWORD", "x"),
        ("MLFLOW_BACKEND_STORE_URI", "postgresql://user:secret@db/mlflow"),
        ("HTTPS_PROXY", "http://user:secret@proxy:3128"),
    ],
)
def test_what_lets_a_process_in_somewhere_reaches_those_alone_that_fetch_models(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert name not in environment.of_threads(2)
    assert environment.of_threads(2, logins=True)[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("TOKENIZERS_PARALLELISM", "false"), ("HTTPS_PROXY", "http://proxy:3128"), ("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")],
)
def test_what_lets_nobody_in_stays(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert environment.of_threads(2)[name] == value
