"""Entry point of the command line, ``mlflow-ngraph`` or ``python -m mlflow_ngraph``; `cli.app` implements it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from mlflow_ngraph.cli.app import run

    sys.exit(run())


if __name__ == "__main__":
    main()
