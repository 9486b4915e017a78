"""What one wants to have much or little of, by short names: the same for every verb that chooses."""

from __future__ import annotations

OBJECTIVES = {
    "throughput": "throughput",
    "latency": "latency_p50_ms",
    "cpu": "cpu_percent",
    "memory": "peak_memory_mb",
    "energy": "energy_per_sample_j",
    "size": "engine_size_mb",
}
"""Metrics by short names. The latency is the median: what one caller sees, which a few slow calls do not move."""
