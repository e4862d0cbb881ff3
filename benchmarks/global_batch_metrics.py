"""What `pool/...` of the log line and the watch for a collapse cost, as a share of a training's time from its
first update to its last.

    python -m benchmarks.global_batch_metrics train_datasets=train.jsonl device=cpu ...

takes the arguments of `dpr train`, runs it in a temporary folder, and prints the share. Times are of timers
within the one run; on a GPU they are those of the host, which is what training waits for.
``train.log_batch_step`` decides how often the metrics are taken.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from dpr.cli.main import main
from dpr.training.callbacks.batch_metrics import GlobalBatchMetrics

taken = {"metrics": 0.0, "first": 0.0, "last": 0.0, "updates": 0.0}


def timed(method: Callable[..., None]) -> Callable[..., None]:
    def call(self: GlobalBatchMetrics, run: Any, *values: Any) -> None:
        start = time.perf_counter()
        taken["first"] = taken["first"] or start
        method(self, run, *values)
        taken["last"], taken["updates"] = time.perf_counter(), run.progress.step
        taken["metrics"] += taken["last"] - start

    return call


if __name__ == "__main__":
    for name in ("on_global_batch", "on_log"):
        setattr(GlobalBatchMetrics, name, timed(getattr(GlobalBatchMetrics, name)))
    with tempfile.TemporaryDirectory() as folder:
        if code := main(["train", *sys.argv[1:], f"output_dir={folder}/run"]):
            raise SystemExit(code)
    total = taken["last"] - taken["first"]
    print(
        f"{taken['metrics'] / total:.2%} of {total:.1f} s, {taken['updates']:.0f} updates of"
        f" {1000 * total / taken['updates']:.0f} ms"
    )
