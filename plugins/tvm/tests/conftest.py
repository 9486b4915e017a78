"""Small models, prepared once for the tests of all compilers."""

from tests.compilers.conftest import cnn, prepared

__all__ = ["cnn", "prepared"]
