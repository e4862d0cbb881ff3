"""What a service counts, as Prometheus reads it."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_PATHS = (
    "/search",
    "/retrieve",
    "/doc",
    "/info",
    "/metrics",
    "/reload",
    "/healthz",
    "/readyz",
    "/v1",
    "/page",
    "/",
)
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STAGES = ("queue", "tokenise", "inference", "search", "texts")


class Figures:
    """Counters and times of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter("dpr_requests", "Answers by path and status.", ["path", "status"], **own)
        self._seconds = Histogram(
            "dpr_stage_seconds",
            "Time of a stage; queue is one request's.",
            ["stage"],
            buckets=_SECONDS,
            **own,
        )
        self._batch = Histogram(
            "dpr_batch_questions", "Questions searched at a time.", buckets=[2**n for n in range(10)], **own
        )
        self._gauges = {
            "requests": Gauge("dpr_requests_at_work", "Requests at work or waiting.", **own),
            "waiting": Gauge("dpr_requests_waiting", "Requests that no worker has taken yet.", **own),
            "workers": Gauge("dpr_workers", "Processes that search.", **own),
            "restarts": Gauge("dpr_worker_restarts", "Processes started instead of one that died.", **own),
            "generation": Gauge("dpr_index_generation", "How often the indexes were opened.", **own),
        }

    def stage(self, name: str, value: float) -> None:
        """Seconds of a stage, or the size of a batch."""
        if name == "batch":
            self._batch.observe(value)
        elif name in STAGES:
            self._seconds.labels(name).observe(value)

    def answered(self, path: str, status: int) -> None:
        """An answer; paths that are not ours are one, so that nobody can fill the memory with names."""
        first = "/" + path.partition("/")[2].partition("/")[0]  # OPTIONS has a path without one: *
        self._requests.labels(first if first in _PATHS else "other", str(status)).inc()

    def text(self, **gauges: float) -> bytes:
        """All figures in Prometheus's text format."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self._registry)
