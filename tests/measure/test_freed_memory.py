"""What a process does with memory that it frees, seen by the kernel."""

import os
import subprocess
import sys

import pytest

ALLOCATING = """
import ctypes, sys
from mlflow_ngraph import process_memory as memory
from mlflow_ngraph.measure import loop

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


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("freed", "again"), [("keep", False), ("return", True)])
def test_freed_memory_is_kept_for_the_next_inference_or_returned(freed, again):
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATING, freed], check=True, capture_output=True, text=True, timeout=60
    )
    faults, after_release = map(int, done.stdout.split())
    assert faults >= 4 * PAGES if again else faults < PAGES / 10
    # Whatever is kept can be given back at once.
    assert after_release >= 0.9 * PAGES
