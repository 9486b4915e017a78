"""A real server with real engines: the protocol, batches, order, limits, readiness."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import requests

from mlflow_ngraph import LoadedEngine, load_model
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph_serve import application
from mlflow_ngraph_serve.batching import Batcher
from mlflow_ngraph_serve.client import decode, encode, infer
from mlflow_ngraph_serve.listening import address, listen
from mlflow_ngraph_serve.protocol import LENGTH_HEADER, Interface
from mlflow_ngraph_serve.service import Service
from tests.support.logged import COMPILERS, Logged
from tests.support.serving import NAME, Running, serving

FOREVER_MS = 40_000
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module", params=COMPILERS)
def running(request: pytest.FixtureRequest, logged: Logged) -> Iterator[Running]:
    # Room for all that any test asks at once.
    with serving(logged.packages[request.param], max_batch=4, max_delay_ms=20, max_queue=64) as found:
        yield found


@pytest.fixture(scope="module")
def engine(logged: Logged) -> Iterator[LoadedEngine]:
    with load_model(logged.packages["onnxruntime"], batching="split") as found:
        yield found


def sample(seed: int, samples: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((samples, 10, 16), dtype=np.float32)


def ask(running: Running, array: np.ndarray) -> np.ndarray:
    return infer(running.url, NAME, {"input": array})["output"]


def post(running: Running, array: np.ndarray) -> requests.Response:
    body, headers = encode({"input": array})
    return requests.post(running.infer, data=body, headers=headers, timeout=30)


def test_the_server_says_what_it_is(running: Running, logged: Logged) -> None:
    get = lambda path: requests.get(running.url + path, timeout=10)  # noqa: E731
    said = get("/v2").json()
    assert said["name"] == "mlflow-ngraph"
    assert said["extensions"] == ["binary_tensor_data"]
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}
    model = get(f"/v2/models/{NAME}").json()
    (version,) = model["versions"]
    assert model == {
        "name": NAME,
        "versions": [version],
        "platform": f"ngraph_{running.service.package.manifest.spec.compiler}",
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 10, 16]}],
        "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1, 10, 16]}],
        "max_batch_size": 4,
    }
    assert running.service.package.digest.startswith(version)
    assert get(f"/v2/models/{NAME}/versions/{version}").json() == model
    for path in ("", f"/versions/{version}"):
        assert get(f"/v2/models/{NAME}{path}/ready").json() == {"name": NAME, "ready": True}


def test_the_server_lists_its_model(running: Running) -> None:
    (version,) = running.service.metadata["versions"]
    models = [{"name": NAME, "version": version, "ready": True}]
    assert requests.get(f"{running.url}/v2/models", timeout=10).json() == {"models": models}
    said = requests.get(running.url, timeout=10).json()
    assert said["models"] == models
    for what, path in said["addresses"].items():
        method = "POST" if what in ("infer", "invocations") else "GET"
        answer = requests.request(method, running.url + path, headers=JSON, timeout=10)
        assert answer.status_code == (400 if method == "POST" else 200)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_command_that_it_prints_works_as_it_stands(running: Running, engine: LoadedEngine) -> None:
    command = running.service.interface.example(running.infer)
    said = json.loads(subprocess.run(command, shell=True, check=True, capture_output=True).stdout)
    (output,) = said["outputs"]
    expected = engine.run([np.zeros((1, 10, 16), np.float32)])[0]
    np.testing.assert_allclose(np.array(output["data"]).reshape(output["shape"]), expected, atol=1e-5)


@pytest.mark.parametrize("form", ["tensor", "named", "instances", "named instances"])
def test_mlflow_s_own_protocol_is_answered(running: Running, engine: LoadedEngine, form: str) -> None:
    array = sample(2, 2)
    content = {
        "tensor": {"inputs": array.tolist()},
        "named": {"inputs": {"input": array.tolist()}},
        "instances": {"instances": array.tolist()},
        "named instances": {"instances": [{"input": row} for row in array.tolist()]},
    }[form]
    answer = requests.post(f"{running.url}/invocations", json=content, timeout=30)
    assert answer.status_code == 200, answer.text
    found = np.array(answer.json()["predictions"]["output"], np.float32)
    np.testing.assert_allclose(found, engine.run([array])[0], atol=1e-5)
    assert requests.get(f"{running.url}/ping", timeout=10).status_code == 200


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"dataframe_split": {}}, "the engine takes tensors, and no tables"),
        ({"inputs": [[1.0]], "instances": [[1.0]]}, "send either inputs or instances"),
        ({"inputs": {"img": [[1.0]]}}, "no input is called 'img': the engine takes input"),
        ({"inputs": {}}, "input 'input' is missing"),
        ({"inputs": [[1.0]]}, "input 'input' has shape [1, 1]"),
        ({"inputs": [["a"]]}, "data must be numbers"),
        ({"instances": []}, "instances must be a list of samples"),
        ({"instances": [{"input": 1}, {"other": 1}]}, "must all have the same inputs"),
    ],
)
def test_what_mlflow_s_protocol_does_not_have_is_refused(running: Running, content: Any, said: str) -> None:
    answer = requests.post(f"{running.url}/invocations", json=content, timeout=30)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_json_is_answered_with_json(running: Running, engine: LoadedEngine) -> None:
    array = sample(1, 2)
    content: dict[str, Any] = {
        "id": "7",
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [2, 10, 16], "data": array.tolist()}],
    }
    answer = requests.post(running.infer, json=content, timeout=30)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    said = answer.json()
    (version,) = running.service.metadata["versions"]
    assert (said["model_name"], said["model_version"], said["id"]) == (NAME, version, "7")
    (output,) = said["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("output", "FP32", [2, 10, 16])
    found = np.array(output["data"], np.float32).reshape(output["shape"])
    np.testing.assert_allclose(found, engine.run([array])[0], atol=1e-5)


def test_bytes_are_answered_with_bytes(running: Running, engine: LoadedEngine) -> None:
    array = sample(2, 3)
    answer = post(running, array)
    assert answer.headers["content-type"] == "application/octet-stream"
    found = decode(answer.content, answer.headers[LENGTH_HEADER])["output"]
    np.testing.assert_allclose(found, engine.run([array])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "method", "status", "said"),
    [
        ("/docs", "GET", 404, "there is nothing here: GET / lists what there is"),
        ("/invocations", "GET", 405, "takes another method"),
        ("/v2/models/other", "GET", 404, "no such model: this is the server of 'block'"),
        (f"/v2/models/{NAME}/versions/2", "GET", 404, "no such version"),
        ("/v2/models/other/infer", "POST", 404, "no such model"),
        (f"/v2/models/{NAME}/infer", "GET", 405, "takes another method"),
        (f"/v2/models/{NAME}", "DELETE", 405, "takes another method"),
        (f"/v2/models/{NAME}/infer", "POST", 400, "the body is not JSON"),
        ("/v2/", "GET", 404, "there is nothing here"),
        (f"/v2/models/{NAME}/infer/", "POST", 404, "there is nothing here"),
    ],
)
def test_what_is_not_there_is_said_in_json(running: Running, path: str, method: str, status: int, said: str) -> None:
    reason = "malformed" if status == 400 else "unknown"
    before = running.counter("ngraph_failures_total", reason=reason)
    answer = requests.request(method, running.url + path, headers=JSON, timeout=10, allow_redirects=False)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert running.counter("ngraph_failures_total", reason=reason) == before + 1


def test_requests_of_many_become_batches_and_everybody_gets_his_own(running: Running, engine: LoadedEngine) -> None:
    arrays = [sample(seed, 1 + seed % 3) for seed in range(48)]
    expected = [engine.run([array])[0] for array in arrays]
    before = {name: running.counter(f"ngraph_batch_samples_{name}") for name in ("count", "sum")}
    with ThreadPoolExecutor(16) as pool:
        for found, wanted in zip(pool.map(lambda array: ask(running, array), arrays), expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    samples = running.counter("ngraph_batch_samples_sum") - before["sum"]
    batches = running.counter("ngraph_batch_samples_count") - before["count"]
    assert samples == sum(map(len, arrays))
    assert batches < len(arrays)


def test_metrics_tell_of_answers_and_failures(running: Running) -> None:
    answered, failed = (
        running.counter("ngraph_requests_total"),
        running.counter("ngraph_failures_total", reason="malformed"),
    )
    ask(running, sample(3))
    requests.post(running.infer, data=b"{", headers=JSON, timeout=10)
    assert running.counter("ngraph_requests_total") == answered + 1
    assert running.counter("ngraph_failures_total", reason="malformed") == failed + 1
    assert running.counter("ngraph_ready") == 1
    assert running.counter("ngraph_queue_samples") == 0
    assert running.counter("ngraph_request_seconds_count") == answered + 1
    page = requests.get(f"{running.url}/metrics", timeout=10).text
    assert f'manifest_sha256="{running.service.package.digest}"' in page
    assert "process_open_fds" in page


def test_a_request_has_as_many_samples_as_a_batch_at_most(running: Running) -> None:
    answer = post(running, sample(4, 5))
    assert answer.status_code == 400
    assert answer.json()["error"] == "the request has 5 samples: at most 4 are served"


def test_large_bodies_are_refused_before_they_are_read(running: Running) -> None:
    limit = running.service.max_body_bytes
    answer = requests.post(running.infer, data=b" " * (limit + 1), headers=JSON, timeout=10)
    assert answer.status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(3 + limit // 50_000):
            yield b" " * 50_000

    # Without a length in the header it is found out on the way; the answer arrives all the same.
    answer = requests.post(running.infer, data=pieces(), headers=JSON, timeout=10)
    assert answer.status_code == 413


def test_compressed_bodies_are_refused(running: Running) -> None:
    answer = requests.post(running.infer, data=b"x", headers={"Content-Encoding": "gzip"}, timeout=10)
    assert answer.status_code == 415


def test_four_requests_at_once_are_one_batch(logged: Logged) -> None:
    with (
        serving(logged.packages["onnxruntime"], max_batch=4, max_delay_ms=FOREVER_MS, timeout_s=50) as running,
        ThreadPoolExecutor(4) as pool,
    ):
        found = list(pool.map(lambda seed: ask(running, sample(seed)), range(4)))
        assert len(found) == 4
        assert running.counter("ngraph_batch_samples_count") == 1
        assert running.counter("ngraph_batch_samples_sum") == 4
        assert running.counter("ngraph_padding_samples_total") == 0


def test_a_lone_request_waits_no_longer_than_the_delay(logged: Logged) -> None:
    with serving(logged.packages["onnxruntime"], max_batch=4, max_delay_ms=300) as running:
        start = time.monotonic()
        ask(running, sample(0, 3))
        assert 0.3 <= time.monotonic() - start < 20
        # Three samples in a batch of four, or one by one: whatever the figures say is sooner.
        assert running.counter("ngraph_samples_total") == 3


def test_first_come_first_served(logged: Logged) -> None:
    with serving(logged.packages["onnxruntime"], max_batch=4, max_delay_ms=0, max_queue=300) as running:
        order: list[int] = []
        everybody = threading.Event()
        for number in range(100):
            question = running.service.interface.read(*_body(sample(number, 1 + number % 4)))

            def done(_: Any, number: int = number) -> None:
                order.append(number)
                if len(order) == 100:
                    everybody.set()

            running.service.submit(question).add_done_callback(done)
        assert everybody.wait(30)
    assert order == sorted(order)


def _body(array: np.ndarray) -> tuple[bytes, str]:
    body, headers = encode({"input": array})
    return body, headers[LENGTH_HEADER]


def test_a_full_queue_says_when_to_come_back(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    go, run = threading.Event(), LoadedEngine.run
    go.set()

    def held(engine: LoadedEngine, *arguments: Any, **options: Any) -> Any:
        assert go.wait(60)
        return run(engine, *arguments, **options)

    monkeypatch.setattr(LoadedEngine, "run", held)
    options: dict[str, Any] = {"max_batch": 4, "max_queue": 4, "max_delay_ms": 0, "timeout_s": 50}
    with serving(logged.packages["onnxruntime"], **options) as running, ThreadPoolExecutor(2) as pool:
        go.clear()
        computed = pool.submit(ask, running, sample(0, 4))
        batcher = running.service._batcher
        assert batcher is not None
        _until(lambda: batcher._computing == 4)
        queued = pool.submit(ask, running, sample(1, 4))
        _until(lambda: running.counter("ngraph_queue_samples") == 4)
        refused = post(running, sample(2, 1))
        assert refused.status_code == 503
        assert refused.json()["error"] == "4 samples are waiting already"
        assert int(refused.headers["retry-after"]) >= 1
        assert running.counter("ngraph_failures_total", reason="queue_full") == 1
        go.set()
        assert computed.result(20).shape == queued.result(20).shape == (4, 10, 16)
        assert ask(running, sample(2, 1)).shape == (1, 10, 16)


def test_what_could_not_be_answered_within_the_bound_is_refused(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(logged.packages["onnxruntime"], max_p99_ms=5000) as running:
        assert post(running, sample(0)).status_code == 200
        monkeypatch.setattr(running.service.pace, "_under_way", 10**6)
        refused = post(running, sample(0))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "within the latency bound" in refused.json()["error"]
        assert running.counter("ngraph_failures_total", reason="latency") == 1


def test_a_request_that_takes_too_long_makes_room_for_others(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"max_batch": 4, "max_queue": 4, "max_delay_ms": 499, "timeout_s": 0.5}
    with serving(logged.packages["onnxruntime"], **options) as running:
        monkeypatch.setattr(Batcher, "_patience", lambda batcher: 60 if batcher.waiting < 4 else 0)
        late = post(running, sample(0, 3))
        assert late.status_code == 504
        assert "no answer within 0.5 s" in late.json()["error"]
        assert running.counter("ngraph_queue_samples") == 0
        assert running.counter("ngraph_failures_total", reason="timeout") == 1
        assert ask(running, sample(1, 4)).shape == (4, 10, 16)


def test_a_body_that_does_not_come_is_given_up(logged: Logged) -> None:
    with serving(logged.packages["onnxruntime"], timeout_s=0.5) as running:
        host, _, port = running.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(
                f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: 9\r\n\r\n{".encode()
            )
            answer = b"".join(iter(lambda: connection.recv(10_000), b"")).decode()
        assert answer.startswith("HTTP/1.1 408")
        assert "the body did not come within 0.5 s" in answer


class Held(Service):
    """A service whose engine is loaded when the test says so."""

    go = threading.Event()

    def start(self, where: tuple[str, int]) -> None:
        assert self.go.wait(60)
        super().start(where)


def test_nobody_is_served_before_the_engine_is_warm(logged: Logged) -> None:
    Held.go.clear()
    with serving(logged.packages["onnxruntime"], kind=Held, ready=False) as running:
        _until(lambda: requests.get(f"{running.url}/v2/health/live", timeout=10).status_code == 200)
        assert requests.get(f"{running.url}/v2/health/ready", timeout=10).status_code == 503
        assert requests.get(f"{running.url}/v2/models/{NAME}/ready", timeout=10).json()["ready"] is False
        refused = post(running, sample(0))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert running.counter("ngraph_ready") == 0
        Held.go.set()
        _until(lambda: requests.get(f"{running.url}/v2/health/ready", timeout=10).status_code == 200)
        assert ask(running, sample(0)).shape == (1, 10, 16)


def test_the_plan_is_said_with_the_figures_that_it_follows_from(logged: Logged) -> None:
    study = open_package(logged.packages["openvino"]).manifest.origin.study
    with serving(logged.packages["openvino"], max_p99_ms=5000) as running:
        speeds, plan = running.said[1:3]
        assert f"as measured by study {study!r}: batch 1: " in speeds
        assert "batches of at most" in plan
        assert speeds.endswith(" ms outside the engine")
        assert running.service.plan is not None
        assert 0 < running.service.plan.expected_p99_s < running.service.plan.room_s == pytest.approx(4.0)


def test_several_engines_answer_at_the_same_time(logged: Logged, engine: LoadedEngine) -> None:
    arrays = [sample(seed) for seed in range(24)]
    with (
        serving(logged.packages["onnxruntime"], workers=2, max_delay_ms=0, max_queue=64) as running,
        ThreadPoolExecutor(8) as pool,
    ):
        for array, found in zip(arrays, pool.map(lambda array: ask(running, array), arrays), strict=True):
            np.testing.assert_allclose(found, engine.run([array])[0], atol=1e-5)


def test_the_listening_socket_has_its_protocol() -> None:
    """asyncio turns Nagle's algorithm off only there; with it an answer on a kept connection takes 40 ms."""
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_a_port_that_somebody_has_is_said(logged: Logged) -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1 port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_server_everywhere_has_an_address_that_can_be_used() -> None:
    with listen("0.0.0.0", 0) as listening:
        assert address(listening) == f"http://localhost:{listening.getsockname()[1]}"


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_values_that_the_runtime_does_not_take_cost_nobody_else(tmp_path: Any) -> None:
    """A model that looks numbers up is not asked for those that it does not have."""
    pytest.importorskip("onnxruntime")
    from tests.support.looked_up import ROWS, look_up

    options: dict[str, Any] = {"max_batch": 4, "max_delay_ms": FOREVER_MS, "timeout_s": 50}
    with serving(look_up(tmp_path), **options) as running, ThreadPoolExecutor(5) as pool:
        asked = [np.array([[number]], np.int64) for number in (0, ROWS + 5, 1, 2, 3)]
        answers = list(pool.map(lambda ids: _looked_up(running, ids), asked))
        assert [answer.status_code for answer in answers] == [200, 422, 200, 200, 200]
        assert answers[1].json()["error"] == "input 'ids' has values of 13 to 13, the engine takes 0 to 7"
        for ids, answer in zip(asked, answers, strict=True):
            if answer.status_code == 200:
                (found,) = decode(answer.content, answer.headers[LENGTH_HEADER]).values()
                np.testing.assert_array_equal(found, np.full((1, 1, 3), ids[0, 0], np.float32))
        assert running.counter("ngraph_failures_total", reason="values") == 1
        assert requests.get(f"{running.url}/v2/health/ready", timeout=10).status_code == 200


def _looked_up(running: Running, ids: np.ndarray) -> requests.Response:
    body, headers = encode({"ids": ids})
    return requests.post(running.infer, data=body, headers=headers, timeout=60)


def _until(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except requests.RequestException:
            pass
        time.sleep(0.02)
    pytest.fail("it did not happen")


def test_a_server_that_ends_answers_in_time_or_says_that_it_could_not(
    logged: Logged, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers of many megabytes take their time, on a busy machine more than a request has."""
    real, writing = Interface.write, threading.Event()

    def write(*arguments: Any) -> Any:
        writing.set()
        time.sleep(2)
        return real(*arguments)

    monkeypatch.setattr(Interface, "write", write)
    monkeypatch.setattr(application, "SMALL", -1)
    options: dict[str, Any] = {"max_batch": 4, "max_delay_ms": 2500, "timeout_s": 3}
    with ThreadPoolExecutor(4) as pool:
        with serving(logged.packages["onnxruntime"], **options) as running:
            body: Any = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 10, 16], "data": [0.0] * 160}]}
            answers = [pool.submit(requests.post, running.infer, json=body, timeout=60) for _ in range(4)]
            assert writing.wait(30)
        statuses = sorted(answer.result().status_code for answer in answers)
    assert set(statuses) <= {200, 504}
    assert statuses[-1] == 504, "two at a time are written, and there is no time for four"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_answers_are_json_of_one_line(running: Running) -> None:
    text = requests.post(running.infer, data=b"\n{\n", headers=JSON, timeout=10).text
    assert text.count("\n") == 1
    assert json.loads(text)
