"""A small transformer, trained twice: once undisturbed, once killed many times at random moments and started
again by the same command.

    python -m benchmarks.quickstart_kills runs/quickstart [--kills 20] [--steps 40] [--seed 0]

The folder is that of examples/quickstart, whose data and vocabulary are used; the settings are
``encoder=quickstart train=quickstart``. Prints what the kills met, whether the weights are equal, and what saving
and verifying took of the undisturbed run.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from dpr.storage.durable import verify_folder
from tests.faults.runs import NAME, REPOSITORY, Injection, Run, final_hash, saved_steps
from tests.faults.server import serve
from tests.helpers.processes import Served

SAVE_EVERY = 2
PATIENCE_S = 1200.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with closing(Served(serve)) as server, tempfile.TemporaryDirectory() as scratch:
        whole, killed, encoder = (Path(scratch) / name for name in ("whole", "killed", "encoder"))
        made = ["new-encoder", f"corpus={options.folder}/data/corpus.tsv", "layers=1", "hidden=256"]
        made += [f"tokenizer={options.folder}/encoder", f"out={encoder}"]
        subprocess.run([sys.executable, "-m", "dpr", *made], cwd=REPOSITORY, check=True)
        first = start(server, options, encoder, whole, ("tell_times", {}))
        assert first.wait(PATIENCE_S) == [0], first.text
        before = time.perf_counter()
        newest = whole / f"{NAME}.step{saved_steps(whole)[0]}"
        assert not verify_folder(newest)
        size = sum(path.stat().st_size for path in newest.rglob("*")) / 1e6
        print(f"checkpoint of {size:.0f} MB: verifying {time.perf_counter() - before:.3f} s")
        print(*re.findall("(?m)^times: .*$", first.text), flush=True)
        generator = random.Random(options.seed)
        kills = [
            kill_once(start(server, options, encoder, killed), options, killed, generator, number)
            for number in range(options.kills)
        ]
        last = start(server, options, encoder, killed)
        assert last.wait(PATIENCE_S) == [0], last.text
        is_equal = final_hash(killed) == final_hash(whole)
    print(f"{sum(kills)} kills; weights, optimizer and metrics: {'EQUAL' if is_equal else 'DIFFERENT'}")
    return 0 if is_equal and all(kills) else 1


def start(
    server: Served, options: argparse.Namespace, encoder: Path, out: Path, *injections: Injection
) -> Run:
    """The training of ``train=quickstart``, with fewer steps and more checkpoints."""
    log = out.with_name(f"log-{time.monotonic_ns()}")
    arguments = ["encoder=quickstart", "train=quickstart", "loss.temperature=0.07", f"output_dir={out}"]
    arguments += [f"{split}_datasets={options.folder}/data/{split}.json" for split in ("train", "dev")]
    arguments += [f"encoder.pretrained_model_cfg={encoder}", f"train.max_steps={options.steps}"]
    arguments += [f"train.eval_every_steps={options.steps // 2}", f"train.save_every_steps={SAVE_EVERY}"]
    request = {"do": "start", "ranks": 1, "port": 0, "environment": {}, "log": str(log)}
    request |= {"arguments": [*arguments, "train.log_batch_step=1"], "injections": list(injections)}
    return Run(server, server.ask(request), log)


def kill_once(
    run: Run, options: argparse.Namespace, out: Path, generator: random.Random, number: int
) -> bool:
    """Kills a run at a random moment, and returns whether it still ran. One in four is killed while it starts, the
    others after some of the steps that are theirs if all are to get the same share."""
    if number % 4 == 3:
        time.sleep(generator.uniform(0, 1.0))
    else:
        saved = max(saved_steps(out), default=0) if out.exists() else 0
        share = min(options.steps - saved - 1, round(2 * options.steps / options.kills))
        run.wait_for(rf" step {saved + generator.randint(1, max(1, share))}/", PATIENCE_S)
        time.sleep(generator.uniform(0, 0.5))
    run.kill()
    done = re.findall(r" step (\d+)/", run.text)
    went_on = re.findall(r"resuming from .* at step (\d+)", run.text) or ["0"]
    print(f"kill {number + 1}: from step {went_on[0]}, killed after {done[-1:] or 'starting'}", flush=True)
    return -9 in run.wait()


if __name__ == "__main__":
    sys.exit(main())
