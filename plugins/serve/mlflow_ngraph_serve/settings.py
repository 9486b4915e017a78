"""Options of a server, from the command line or the config of a deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.validation import explain
from mlflow_ngraph_serve.planning import Wishes
from mlflow_ngraph_serve.service import RequestLimits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Settings(BaseModel):
    """Options of a server. None is replaced by a choice from the engine's figures."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on; ``0.0.0.0`` is every address of this machine."""
    port: int = Field(8080, ge=0, le=65535)
    """The port; 0 takes a free one."""
    max_batch: int | None = Field(None, ge=1)
    """Samples in a batch, and in a request, at most."""
    max_delay_ms: float | None = Field(None, ge=0)
    """Longest wait of a request for others while the engine is free."""
    max_p99_ms: float | None = Field(None, gt=0)
    """The bound that the 99th percentile of the latency shall keep; requests that cannot be answered in it are
    refused."""
    max_queue: int | None = Field(None, ge=1, le=1_000_000)
    """Samples that may wait at the same time."""
    max_body_mb: float | None = Field(None, gt=0, le=4096)
    """The largest body of a request; by default that of the largest batch, written as JSON."""
    timeout_s: float = Field(30.0, gt=0, le=86_400)
    """Timeout of a request, from its first byte to its answer."""
    workers: int = Field(1, ge=1, le=64)
    """Engines to load; each computes one batch at a time."""

    @model_validator(mode="after")
    def _in_time(self) -> Settings:
        if self.max_delay_ms is not None and self.max_delay_ms >= 1000 * self.timeout_s:
            limit = f"the {self.timeout_s:g} s that a request may take (timeout_s)"
            raise ValueError(f"max_delay_ms must be less than {limit}, found {self.max_delay_ms:g}")
        return self

    @property
    def wishes(self) -> Wishes:
        return Wishes(self.max_batch, self.max_delay_ms, self.max_p99_ms, self.max_queue, self.timeout_s)

    @property
    def limits(self) -> RequestLimits:
        return RequestLimits(self.timeout_s, None if self.max_body_mb is None else round(self.max_body_mb * 1e6))

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Settings:
        """Validate text or numbers by name.

        Raises
        ------
        UsageError
            A name is unknown, or a value wrong.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            raise UsageError(explain(error, cls)) from None


def check_name(name: str) -> str:
    """``name``, if clients can ask for a model that is called so.

    Raises
    ------
    UsageError
        They cannot.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name: it has up to 100 letters, digits, dots, dashes and underscores")
    return name
