"""Self-test of a new machine: every part of the package is tried once and reported."""
