"""Where the time of a piece of work goes, by kind of operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

# The first kind that one of these words names; what none names is the rest.
KINDS = {
    "matrix products": ("mm", "linear", "matmul"),
    "attention": ("attention", "softmax"),
    "dropout": ("dropout", "bernoulli", "random", "rand"),
    "GELU and layer norm": ("gelu", "layer_norm"),
    "optimizer and clipping": ("foreach", "adam", "norm", "lerp", "addcdiv", "addcmul", "sqrt"),
    "word table": ("embedding", "index_select"),
}
REST = "rest"


def shares(work: Callable[[], object]) -> dict[str, float]:
    """Shares of the time that each kind takes by itself, of the time of all operations in all threads; they sum
    to 1."""
    threads = _ExperimentalConfig(profile_all_threads=True)  # encoding has a thread for each pack of texts
    with profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as taken:
        work()
    times = dict.fromkeys([*KINDS, REST], 0.0)
    for event in taken.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total
    total = sum(times.values())
    return {kind: time / total for kind, time in times.items()}


def kind_of(operation: str) -> str:
    """``matrix products`` for ``aten::addmm``."""
    name = operation.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), REST)


def table(seconds: Mapping[str, float], found: Mapping[str, Mapping[str, float]]) -> str:
    """A Markdown table of seconds by kind, one column a side; a side's seconds are those of a round without
    the profiler."""
    lines = [f"| seconds of a round | {' | '.join(found)} |", "|---|" + "---:|" * len(found)]
    for kind in [*KINDS, REST]:
        lines.append(
            f"| {kind} | "
            + " | ".join(f"{one[kind] * seconds[side]:.2f}" for side, one in found.items())
            + " |"
        )
    return "\n".join(lines)
