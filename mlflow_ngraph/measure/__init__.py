"""Timed loops, their statistics, and tests of a machine's noise."""
