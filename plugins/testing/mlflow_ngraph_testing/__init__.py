"""Tools for authors of adapters: a compiler that misbehaves on request, and the suite that every adapter must pass."""
