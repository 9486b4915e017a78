"""A loaded engine answers in forked children, as of gunicorn, of a DataLoader and of multiprocessing, and they end."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph import load_model
from mlflow_ngraph.errors import EngineError
from tests.support.logged import COMPILERS, Logged

pytestmark = pytest.mark.usefixtures("processes")

WAYS = """
import multiprocessing, os, sys, threading
import numpy as np
from torch.utils.data import DataLoader, Dataset
from mlflow_ngraph import load_model

engine = load_model(sys.argv[1])
inputs = np.ones(engine.inputs[0].resolve(1), np.float32)

def answer():
    return engine.run([inputs])[0]

def child(expected, end=sys.exit):
    # Ends as a program does by default, with all that is done at the end of an interpreter.
    pid = os.fork()
    if not pid:
        assert np.allclose(answer(), expected, atol=1e-6)
        end(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

class Samples(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, place):
        return answer()

def in_thread():
    results.append(child(expected, os._exit))

results, expected = [], np.load(sys.argv[2])
results.append(child(expected))  # loaded and not used
answer()
results.append(child(expected))
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
loaded = DataLoader(Samples(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
assert all(np.allclose(found, expected, atol=1e-6) for found in loaded)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert all(np.allclose(found, expected, atol=1e-6) for found in pool.map(Samples().__getitem__, range(4)))
assert np.allclose(answer(), expected, atol=1e-6)  # the parent's own
print(results)
"""

APPLICATION = """
import json, os
import numpy as np
from mlflow_ngraph import load_model

engine = load_model(os.environ["PACKAGE"])
inputs = np.ones(engine.inputs[0].resolve(1), np.float32)
engine.run([inputs])

def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([os.getpid(), engine.run([inputs])[0].tolist()]).encode()]
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_forked_children_answer_and_end(compiler: str, logged: Logged, tmp_path: Path) -> None:
    with load_model(logged.packages[compiler]) as engine:
        np.save(tmp_path / "expected.npy", engine.run([np.ones(engine.inputs[0].resolve(1), np.float32)])[0])
    done = subprocess.run(
        [sys.executable, "-c", WAYS, logged.packages[compiler], tmp_path / "expected.npy"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[7, 7, 7]"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_gunicorn_preloads_an_engine(compiler: str, logged: Logged, tmp_path: Path) -> None:
    (tmp_path / "preloaded.py").write_text(APPLICATION)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*listener.getsockname())
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", address, "preloaded"]
    environment = {**os.environ, "PACKAGE": str(logged.packages[compiler])}
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        found = _answer(f"http://{address}")
        assert found[0] != server.pid
        with load_model(logged.packages[compiler]) as engine:
            inputs = np.ones(engine.inputs[0].resolve(1), np.float32)
            np.testing.assert_allclose(found[1], engine.run([inputs])[0], atol=1e-6)
    finally:
        server.terminate()
        assert server.wait(20) == 0


def _answer(url: str) -> list[Any]:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return list(json.load(answer))
        except OSError:
            time.sleep(0.1)
    raise AssertionError("gunicorn does not answer")


def test_openvino_cannot_be_used_where_an_engine_was_closed_before_the_fork(logged: Logged) -> None:
    load_model(logged.packages["openvino"]).close()
    refused = _in_child(lambda: load_model(logged.packages["openvino"]))
    assert refused.startswith("openvino was used in the process from which this one was forked")
    with load_model(logged.packages["onnxruntime"]) as engine:
        assert not _in_child(lambda: engine.run([np.ones(engine.inputs[0].resolve(1), np.float32)]))


def test_an_engine_of_a_gpu_says_that_it_cannot_be_forked(logged: Logged) -> None:
    with load_model(logged.packages["onnxruntime"]) as engine:
        engine._target = replace(engine._target, accelerator="cuda")
        refused = _in_child(lambda: engine.run([np.ones(engine.inputs[0].resolve(1), np.float32)]))
    assert refused.endswith("cannot be used in both: start processes with the method 'spawn'")


def _in_child(function: Callable[[], object]) -> str:
    """The error of a function in a forked child; empty without one."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        try:
            function()
            sender.send("")
        except EngineError as error:
            sender.send(str(error))
        finally:
            os._exit(0)
    assert receiver.poll(60)
    os.waitpid(pid, 0)
    return str(receiver.recv())
