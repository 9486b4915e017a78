"""The door for tools that still ask for a setup.py; what the package is stands in pyproject.toml."""

from setuptools import setup

setup()
