"""Training BERT-base in bf16: questions per second and share of the peak by side; one step's profile; no
synchronisation."""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import sides
from benchmarks.gpu.record import PEAK, Record
from benchmarks.gpu.workload import (
    DROPOUT,
    DTYPE,
    PRECISION,
    Sizes,
    attention_of,
    batches_of,
    lengths_of,
    model_of,
    texts_of,
    write_bert,
)
from benchmarks.measuring import Figures, synchronize, take_turns
from dpr.core.records import Passage, TrainingSample
from dpr.data.training_data import TrainingData
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.run import Run
from dpr.training.throughput import TowerCost

# Kernels by words of their names; the first kind that one names. Attention comes first, since its kernels
# name their libraries too.
KINDS = {
    "attention": ("flash", "fmha", "attention", "softmax", "sdpa"),
    "matrix products": (
        "gemm",
        "nvjet",
        "cutlass",
        "cublas",
        "wgmma",
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "linear",
    ),
    "optimizer and clipping": ("multi_tensor", "adam", "foreach", "lpnorm"),
    "layer norm": ("layer_norm", "layernorm", "gammabeta"),
    "GELU": ("gelu",),
    "dropout": ("dropout", "bernoulli"),
    "word table": ("embedding", "indexselect", "index_select"),
    "copies": ("memcpy", "memset", "copy"),
}


def part(record: Record, sizes: Sizes) -> None:
    """Ours with the kernel, SDPA over packs, padded; a plain loop; then the profile and the
    count of synchronisations."""
    attention = attention_of(record)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_bert(Path(temporary) / "bert", sizes)
        model = model_of(folder, attention)
        batches = batches_of(model, sizes.batch, sizes.batches)
        lengths = lengths_of(batches)
        record.add("tokens of a step", int(lengths.sum()) // len(batches))
        record.add(
            "mean tokens of a question, of a passage", [float(x.double().mean()) for x in _by_side(batches)]
        )
        flops = TowerCost(model.ctx_model).of(lengths)
        ours = sides.our_training(model, batches, record.device, precision=PRECISION)
        others = {name: model_of(folder, "sdpa", packed=name == "sdpa") for name in ("sdpa", "padded")}
        competitors: dict[str, Callable[[], object]] = {
            **({"varlen": ours} if attention == "varlen" else {}),
            **{
                name: sides.our_training(other, batches, record.device, precision=PRECISION)
                for name, other in others.items()
            },
            "plain loop": sides.plain_training(folder, batches, record.device, dropout=DROPOUT, dtype=DTYPE),
        }
        figures = _measure(record, sizes, competitors, flops)
        record.judge(
            "training",
            max(
                rate_share(side, flops, sizes) for name, side in figures.items() if name in ("varlen", "sdpa")
            ),
        )
        competitors.clear()
        others.clear()
        record.add("profile of a step", step_profile(ours, record.device))
        _synchronisations(record, folder, sizes, attention)


def _by_side(batches: Sequence[Any]) -> list[torch.Tensor]:
    return [
        torch.cat([getattr(batch, side).lengths for batch in batches]) for side in ("questions", "contexts")
    ]


def rate_share(side: Figures, flops: float, sizes: Sizes) -> float:
    """Of ``PEAK``."""
    return side.rate * flops / (sizes.batch * sizes.batches) / PEAK


def _measure(
    record: Record, sizes: Sizes, competitors: Mapping[str, Callable[[], object]], flops: float
) -> dict[str, Figures]:
    units = sizes.batch * sizes.batches
    figures = take_turns(
        competitors,
        units=units,
        flops=flops,
        rounds=sizes.rounds,
        device=record.device,
        warmups=sizes.warmups,
        dtype=DTYPE,
    )
    for name, side in figures.items():
        shares = {
            "share of 989 TFLOP/s": rate_share(side, flops, sizes),
            "share of a measured product": side.share,
        }
        record.add(name, {"questions/s": side.rate, "by round": side.rates} | shares)
    return figures


def step_profile(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Of one round of steps: how long the device was busy and idle, and the share of each kind of kernel."""
    is_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]) as taken:
        work()
        synchronize(device)
    kind = torch.autograd.DeviceType.CUDA if is_cuda else torch.autograd.DeviceType.CPU
    # Named regions (dpr/encode, ...) appear among the device's events too, and cover the gaps.
    events = [
        event
        for event in taken.events()
        if event.device_type == kind
        and not getattr(event, "is_user_annotation", False)
        and not event.name.startswith(("dpr/", "ProfilerStep", "Optimizer.", "Activity Buffer"))
    ]
    return shares_of([(event.name, event.time_range.start, event.time_range.end) for event in events])


def shares_of(events: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """``events`` are kernels: name, start and end in microseconds. Those of several streams may overlap."""
    busy, end = 0.0, min((start for _, start, _ in events), default=0.0)
    first, gaps = end, []
    by_kind: Counter[str] = Counter()
    by_name: Counter[str] = Counter()
    for name, start, stop in sorted(events, key=lambda event: event[1]):
        if start > end:
            gaps.append(start - end)
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
        by_kind[kind_of(name)] += stop - start  # type: ignore[assignment]
        by_name[name] += stop - start  # type: ignore[assignment]
    total, span = sum(by_kind.values()) or 1, max(end - first, 1e-9)
    return {
        "milliseconds": span / 1e3,
        "idle share": 1 - busy / span,
        "gaps of more than 10 us": sum(gap > 10 for gap in gaps),
        "longest gap, us": max(gaps, default=0.0),
        "kernels": len(events),
        "shares": {kind: time / total for kind, time in by_kind.most_common()},
        "longest kernels": {name[:120]: time / total for name, time in by_name.most_common(12)},
    }


def kind_of(kernel: str) -> str:
    name = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "rest")


class _MadeUp(TrainingData):
    """Rows in memory."""

    def __init__(self, count: int) -> None:
        texts = texts_of(2 * count)
        pairs = zip(texts.questions[:count], texts.passages[:count], texts.passages[count:], strict=True)
        self._rows = [
            TrainingSample(question, (Passage(own),), (Passage(hard),)) for question, own, hard in pairs
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> TrainingSample:
        return self._rows[row]


class _Watch(Callback):
    """Has torch report each time that the host waits for the device, from the end of step ``first`` to before
    the line of ``last``."""

    def __init__(self, device: torch.device, first: int, last: int) -> None:
        self._is_cuda, self._first, self._last = device.type == "cuda", first, last
        self.watched = 0

    def on_step_end(self, run: Run) -> None:
        self.watched += self._first < run.progress.step <= self._last
        if self._is_cuda and run.progress.step in (self._first, self._last):
            torch.cuda.set_sync_debug_mode("warn" if run.progress.step == self._first else "default")


def _synchronisations(record: Record, folder: Path, sizes: Sizes, attention: str) -> None:
    """The trainer's own loop, with data read by a worker process, between its first and its last log line."""
    steps = sizes.sync_steps
    watch = _Watch(record.device, 2, steps - 1)
    trainer = BiEncoderTrainer(
        model_of(folder, attention).to(record.device),
        [_MadeUp(sizes.batch * min(steps // 2, 8))],
        output_dir=folder.parent / "run",
        callbacks=[watch],
        precision=PRECISION,
        batch_size=sizes.batch,
        max_steps=steps,
        num_train_epochs=steps,
        log_batch_step=steps,
        eval_per_epoch=0,  # a validation would end in a checkpoint, which has to wait
        num_workers=0 if record.is_rehearsal else 1,
        token_store="off",
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.train()
        finally:
            if record.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    waits = [
        f"{each.filename}:{each.lineno}"
        for each in caught
        if "synchronizing CUDA operation" in str(each.message)
    ]
    record.add("steps watched for synchronisations", watch.watched)
    record.add("where the host waited", dict(Counter(waits)))
    record.judge("synchronisations", len(waits))
