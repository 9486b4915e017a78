"""Models with an input specification, by scheme."""
