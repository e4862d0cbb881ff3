"""A tower as an ONNX graph, also in half precision or with weights of 8 bits, and its vectors by
onnxruntime."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpr.core.errors import InputError, first_line
from dpr.core.lazy import require
from dpr.core.logs import get_logger
from dpr.models.encoder import Encoder

logger = get_logger(__name__)
EXTRA = "onnx"
INPUTS = ("input_ids", "attention_mask")
OUTPUT, STATES = "sentence_embedding", "last_hidden_state"
LOWER_PRECISIONS = ("fp16", "int8")
_LARGEST_FILE = 1 << 30
"""Weights beyond this lie in a file beside the graph, since a file of the format holds 2 GiB at most."""
_TEXTS_PER_CALL = 32


class _PaddedTower(nn.Module):
    def __init__(self, tower: Encoder) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.tower.of_padded(input_ids, attention_mask.bool())


class _States(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states


def write_graph(tower: Encoder, file: Path, *, source: str) -> None:
    """Writes ``tower`` in fp32: ``input_ids`` and ``attention_mask`` (batch, length) int64 in,
    ``sentence_embedding`` (batch, D) out.

    Pooling, projection, cut and normalisation are part of the graph, as is the token that the original DPR
    puts at the end of its window.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are not installed.
        InputError: the backbone cannot be traced.
    """
    _trace(
        _PaddedTower(copy.deepcopy(tower)),
        file,
        OUTPUT,
        f"{source}: a {type(tower.backbone).__name__} with this pooling",
    )


def write_states_graph(backbone: nn.Module, file: Path, *, source: str) -> None:
    """Writes a backbone alone in fp32, compared with what onnxruntime makes of it: ``last_hidden_state``
    (batch, length, D) out.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are not installed.
        InputError: it cannot be traced, or has other states in onnxruntime.
    """
    states = _States(copy.deepcopy(backbone))
    _trace(states, file, STATES, f"{source}: a {type(backbone).__name__}")
    encoder = GraphEncoder(file, pad_id=0, output=STATES)
    for lengths in ((9, 3, 12), (1,)):
        batch = encoder.padded([[1 + (7 * place) % 5 for place in range(length)] for length in lengths])
        with torch.no_grad():
            expected = states(*map(torch.from_numpy, batch)).numpy()
        differences = np.abs(encoder.run(*batch) - expected)[batch[1] == 1]
        if not differences.max() <= 1e-4 * max(1.0, float(np.abs(expected).max())):
            raise InputError(
                f"its states differ by {differences.max():.2g} in onnxruntime; nothing was kept", file=source
            )


def _trace(module: nn.Module, file: Path, output: str, what: str) -> None:
    for package in ("onnx", "onnxscript"):
        require(package, extra=EXTRA, purpose="a graph of ONNX")
    module.float().cpu().eval()
    batch = (torch.ones(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64))
    batch[1][1, 4:] = 0
    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    size = sum(parameter.numel() * 4 for parameter in module.parameters())
    try:
        with torch.no_grad(), _quiet():
            shapes = dict.fromkeys(INPUTS, shape)
            program = torch.onnx.export(
                module,
                batch,
                input_names=INPUTS,
                output_names=[output],
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            _forget_source(program.model)
            program.save(str(file), external_data=size > _LARGEST_FILE)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise InputError(f"{what} could not be traced ({first_line(error)})") from error


def _forget_source(model: Any) -> None:
    """Removes the lines of code, with their paths on this machine, that the exporter notes beside every
    node."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()


def write_lower(full: Path, file: Path, precision: str) -> None:
    """Writes the graph ``full`` with ``precision``: fp16, all numbers but those in and out; or int8, the
    matrices of linear layers, each output with a scale of its own, while activations are rounded as they
    come."""
    onnx = require("onnx", extra=EXTRA, purpose=f"precisions=[{precision}]")
    with _quiet():
        path = list(sys.path)
        modules = ("onnxruntime.quantization", "onnxruntime.transformers.float16")
        quantization, float16 = (
            require(module, extra=EXTRA, purpose=f"precisions=[{precision}]") for module in modules
        )
        sys.path[:] = path  # the package appends a folder of its own, whose modules would hide others
        if precision == "int8":
            is_large = full.with_name(f"{full.name}.data").exists()
            options = {
                "op_types_to_quantize": ["MatMul"],
                "per_channel": True,
                "use_external_data_format": is_large,
            }
            quantization.quantize_dynamic(str(full), str(file), **options)
            return
        half = float16.convert_float_to_float16(onnx.load(str(full)), keep_io_types=True)
        onnx.save(
            half,
            str(file),
            save_as_external_data=half.ByteSize() > _LARGEST_FILE,
            location=f"{file.name}.data",
        )


Named = Callable[[Path, str], Path]
"""The file of a graph in a precision, from that in fp32."""


def write_precisions(
    graphs: Sequence[Path],
    precisions: Sequence[str],
    named: Named,
    vectors: Callable[[str], tuple[np.ndarray, np.ndarray]],
) -> dict[str, dict[str, float]]:
    """Writes graphs in lower precisions beside them, and returns what that changes.

    By precision: ``top10_overlap`` and ``least_cosine`` (``overlap``), and the size of the graphs in
    ``bytes``.

    Args:
        vectors: of questions and of passages by the graphs of a precision.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are not installed.
    """
    expected = vectors("fp32")
    measured: dict[str, dict[str, float]] = {"fp32": {"bytes": sum(map(file_size, graphs))}}
    for precision in dict.fromkeys(precisions):
        for graph in graphs:
            write_lower(graph, named(graph, precision), precision)
        lower = vectors(precision)
        size = sum(file_size(named(graph, precision)) for graph in graphs)
        measured[precision] = {
            **overlap(lower, expected),
            "bytes": size,
            "questions": len(lower[0]),
            "passages": len(lower[1]),
        }
        logger.info(
            "%s: %.1f MB in place of %.1f MB; %.1f %% of the 10 best of %d passages for %d questions are"
            " those of fp32, least cosine %.5f",
            *(
                precision,
                size / 1e6,
                measured["fp32"]["bytes"] / 1e6,
                100 * measured[precision]["top10_overlap"],
            ),
            *(len(lower[1]), len(lower[0]), measured[precision]["least_cosine"]),
        )
    return measured


class GraphEncoder:
    """Vectors by onnxruntime on the CPU, of token ids as the tokenizer of a served folder gives them."""

    def __init__(self, file: Path, *, pad_id: int, output: str = OUTPUT) -> None:
        onnxruntime = require("onnxruntime", extra=EXTRA, purpose="checking a written graph")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._pad_id, self._output = pad_id, output

    def encode(self, sequences: Sequence[Sequence[int]], tower: Encoder | None = None) -> np.ndarray:
        """(N, D) float32 in the given order; in batches of texts as they come, padded to the longest.
        ``tower`` pools what are states."""
        parts = []
        for start in range(0, len(sequences), _TEXTS_PER_CALL):
            batch = self.padded(sequences[start : start + _TEXTS_PER_CALL])
            output = self.run(*batch)
            parts.append(output if tower is None else _pooled(tower, output, *batch))
        return np.concatenate(parts)

    def padded(self, sequences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """``input_ids`` and ``attention_mask`` (N, L)."""
        input_ids = np.full((len(sequences), max(map(len, sequences))), self._pad_id, dtype=np.int64)
        mask = np.zeros_like(input_ids)
        for row, tokens in enumerate(sequences):
            input_ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        return input_ids, mask

    def run(self, input_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """What the graph gives for one batch."""
        output: np.ndarray = self._session.run(
            [self._output], dict(zip(INPUTS, (input_ids, mask), strict=True))
        )[0]
        return output


@torch.no_grad()
def _pooled(tower: Encoder, states: np.ndarray, input_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Vectors (N, D) of states (N, L, H)."""
    tokens = torch.from_numpy(input_ids)
    pooled = tower.pooling.padded(
        torch.from_numpy(states), tokens, torch.from_numpy(mask).bool(), torch.zeros_like(tokens[:, 0])
    )
    return tower.finished(pooled).numpy()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of exporters and quantizers on their own progress."""
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "onnxruntime", "")
    before = [(logger := logging.getLogger(name), logger.level) for name in names]
    try:
        for logger, _ in before:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def overlap(
    found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray], *, top: int = 10
) -> dict[str, float]:
    """How near (questions, passages) in a lower precision are to those in fp32, (Q, D) and (P, D) each: the
    share of the ``top`` passages of a question that stay among them, on average, and the least cosine of a
    text's two vectors."""
    top = min(top, len(expected[1]))
    best = [
        np.argsort(-(questions @ passages.T), axis=1, kind="stable")[:, :top]
        for questions, passages in (found, expected)
    ]
    shared = [len(np.intersect1d(one, other)) for one, other in zip(*best, strict=True)]
    cosines = [
        (one * other).sum(1) / np.maximum(np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1), 1e-30)
        for one, other in zip(found, expected, strict=True)
    ]
    return {
        "top10_overlap": float(np.mean(shared) / top),
        "least_cosine": float(np.concatenate(cosines).min()),
    }


def file_size(file: Path) -> int:
    """Bytes of a graph and of the weights beside it."""
    return sum(path.stat().st_size for path in (file, file.with_name(f"{file.name}.data")) if path.exists())


def tokenizer_for_serving(tensorizer: Any, length: int) -> Any:
    """The tokenizer as the package ``tokenizers`` reads it, which cuts texts and pairs to ``length``
    tokens."""
    backend = tensorizer.tokenizer.backend_tokenizer
    plain = type(backend).from_str(backend.to_str())
    plain.no_padding()
    plain.enable_truncation(length, strategy="longest_first", direction=tensorizer.tokenizer.truncation_side)
    return plain
