"""Limits of time that fail a test which hangs, and no test that runs beside others."""

import os

_LEAST = 3.0


def patient(seconds: float) -> float:
    """Returns ``seconds`` times the load of this machine, at least three times; DPR_TEST_PATIENCE=N sets how many."""
    given = float(os.environ.get("DPR_TEST_PATIENCE", "0"))
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0
    return seconds * (given or max(_LEAST, 2 * load))
