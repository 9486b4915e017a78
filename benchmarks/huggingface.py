"""Which compiler does which network of Hugging Face's transformers: real studies, and their page.

``python benchmarks/huggingface.py`` takes the arguments of benchmarks/compiler_matrix.py, and runs the same kind of study
over the networks of tests/workloads/huggingface.py, given as a user gives them: a function that returns the model, and its
inputs by keyword. The page is docs/reference/huggingface-matrix.md by default.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for the networks, which belong to the tests

from compiler_matrix import parsed, publish  # noqa: E402 - beside this file

from mlflow_ngraph.study import Study, load  # noqa: E402
from tests.workloads.huggingface import INPUTS  # noqa: E402

PAGE = ROOT / "docs/reference/huggingface-matrix.md"


def study() -> Study:
    """The matrix's way to measure, over these networks."""
    workloads = [
        {
            "ref": f"torch:tests.workloads.huggingface:{name}",
            "options": {"family": "transformers", "inputs": {key: dict(entry) for key, entry in inputs.items()}},
        }
        for name, inputs in INPUTS.items()
    ]
    description = "can every compiler of this machine do networks of Hugging Face's transformers?"
    return load("compiler-matrix", {"name": "huggingface", "workloads": workloads, "description": description})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments = parsed(parser, PAGE)
    sys.exit(publish([study()], arguments, "Hugging Face matrix", "python benchmarks/huggingface.py"))
