"""The version of this package, said once: the build reads it from here without importing anything."""

__version__ = "0.1.0"
