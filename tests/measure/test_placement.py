"""What a process does with memory, and where its thread runs, seen by the kernel."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_ngraph.measure import placement

ALLOCATING = """
import ctypes, sys
from mlflow_ngraph.measure import loop, memory

assert sys.argv[1] == "return" or memory.keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]

def call():
    # Larger than glibc ever keeps by itself.
    block = libc.malloc(64 << 20)
    libc.memset(block, 1, 64 << 20)
    libc.free(block)

call()
before = loop.take_slice(call, 4, 60).page_faults
memory.release_freed()
print(before, loop.take_slice(call, 1, 60).page_faults)
"""
PAGES = (64 << 20) // os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("freed", "again"), [("keep", False), ("return", True)])
def test_freed_memory_is_kept_for_the_next_inference_or_returned(freed, again):
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATING, freed], check=True, capture_output=True, text=True, timeout=60
    )
    faults, after_release = map(int, done.stdout.split())
    assert faults >= 4 * PAGES if again else faults < PAGES / 10
    # Whatever is kept can be given back at once.
    assert after_release >= 0.9 * PAGES


def test_a_thread_that_is_moved_may_still_run_everywhere():
    before = os.sched_getaffinity(0)
    seen = set()
    for seed in range(40):
        placement.move_thread(random.Random(seed))
        seen.add(int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[36]))
        assert os.sched_getaffinity(0) == before
    assert len(seen) > 1 or len(before) == 1


def test_a_pinned_thread_stays_where_it_is():
    before = os.sched_getaffinity(0)
    only = {min(before)}
    os.sched_setaffinity(0, only)
    try:
        placement.move_thread(random.Random(0))
        assert os.sched_getaffinity(0) == only
    finally:
        os.sched_setaffinity(0, before)
