"""The command line of a child that runs Python."""

from __future__ import annotations

import sys

_BEGIN = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); del sys.argv[0]; "
    "from importlib import import_module; sys.exit(import_module(sys.argv[0]).main())"
)


def command(module: str, *arguments: str) -> list[str]:
    """The command that imports a module and runs its `main`, with the arguments in `sys.argv` as if it were a script.

    Python would put the current directory first on the path, and a file there take the place of any module of its name. What a
    user names is imported from there by the workload that names it.
    """
    return [sys.executable, "-c", _BEGIN, module, *arguments]
