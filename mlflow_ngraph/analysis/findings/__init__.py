"""Findings about results: sentences with evidence and a command that shows more.

>>> from mlflow_ngraph import load_results
>>> from mlflow_ngraph.analysis.findings import find
>>> for finding in find(load_results()):
...     print(finding.title, finding.text)
"""

from mlflow_ngraph.analysis.findings.base import KINDS, NEEDED, Finding
from mlflow_ngraph.analysis.findings.survey import Survey, find, markdown, survey

__all__ = ["KINDS", "NEEDED", "Finding", "Survey", "find", "markdown", "survey"]
