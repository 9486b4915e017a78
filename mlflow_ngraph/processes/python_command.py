"""The command line of a child that runs Python."""

from __future__ import annotations

import sys

_BEGIN = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); del sys.argv[0]; "
    "from importlib import import_module; sys.exit(import_module(sys.argv[0]).main())"
)


def command(module: str, *arguments: str) -> list[str]:
    """Build the command that imports a module and runs its `main`, with the arguments in `sys.argv`.

    Python would put the current directory first on the path, where a file could shadow any module. Modules of users are
    imported from there by their workload.
    """
    return [sys.executable, "-c", _BEGIN, module, *arguments]
