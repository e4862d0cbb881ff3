"""mteb: a bi-encoder as one of its models, searched by our exact search; and its retrieval tasks as test sets
of ``dpr evaluate``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpr.core.errors import DprError, InputError
from dpr.core.lazy import require
from dpr.core.logs import get_logger
from dpr.core.paths import user_path
from dpr.core.records import Passage, Question
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.vector_shards import VectorShard, open_shards
from dpr.indexer.exact import ExactIndex
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retrievers import DenseRetriever, QuestionForm
from dpr.retrieval.suite_settings import SuiteSetConfig
from dpr.retrieval.suites import TestSet
from dpr.storage.checksums import cache_root
from dpr.storage.durable import durable_folder, read_manifest, verify_folder

logger = get_logger(__name__)

PURPOSE = "evaluation with mteb"


class MtebModel:
    """What ``mteb.evaluate`` takes: an encoder for all of its tasks, and the search of its retrieval tasks.

    Titles and bodies of passages are encoded as the model was trained, not joined by a space, and with the
    model's own prompts. The corpus of a retrieval task is embedded chunk by chunk into ``cache_dir``: memory
    does not grow with it, a killed run continues, and the vectors serve all later runs of the same model.

    Args:
        name: ``organisation/model``, as results are filed.
        cache_dir: where corpora and vectors are kept; by default in the cache folder ($DPR_CACHE).
        instruction: put before questions with a task's own instruction in it, such as ``"Instruct:
            {instruction}\\nQuery: "``, for a model without prompts of its own; by default mteb's instructions
            are not used.
    """

    def __init__(
        self,
        model: BiEncoder,
        *,
        name: str = "dpr/model",
        cache_dir: str | Path | None = None,
        instruction: str = "",
    ) -> None:
        require("mteb", extra="mteb", purpose=PURPOSE)
        self.model, self.name, self.instruction = model, name, instruction
        self.cache = cache_root(None) / "mteb" if cache_dir is None else user_path(cache_dir)
        self._shards: list[VectorShard] = []

    @property
    def mteb_model_meta(self) -> Any:
        """Name, fingerprint and similarity, as mteb files them."""
        meta = require("mteb.models.model_meta", extra="mteb", purpose=PURPOSE)
        facts = {
            "name": self.name,
            "revision": self.model.fingerprint,
            "similarity_fn_name": meta.ScoringFunction.DOT_PRODUCT,
        }
        return meta.ModelMeta.create_empty(overwrites=facts)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Vectors (N, D) float32 of the batches: of questions where mteb says so, else of passages."""
        is_query = getattr(prompt_type, "value", prompt_type) == "query"
        prefix = self._form(task_metadata).before_questions
        parts = []
        for batch in inputs:
            if is_query:
                tokens = self.model.tensorizer.question_tokens(list(batch["text"]), prefix=prefix)
                parts.append(self.model.encode_tokens(tokens, encoder_type="question"))
            else:
                parts.append(self.model.encode_passages(_passages(batch)))
        return np.concatenate(parts) if parts else np.zeros((0, self.model.dimension), dtype=np.float32)

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Scores (N, M) of vectors (N, D) and (M, D)."""
        return torch.atleast_2d(torch.as_tensor(first)) @ torch.atleast_2d(torch.as_tensor(second)).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Scores (N,) of vectors (N, D) side by side."""
        return (torch.as_tensor(first) * torch.as_tensor(second)).sum(dim=-1)

    def index(
        self, corpus: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, **options: Any
    ) -> None:
        """Embeds a corpus of rows with id, title and text; chunks that an earlier run embedded are kept."""
        folder = self.cache / f"{task_metadata.name}-{hf_subset}-{hf_split}"
        file = folder / "corpus.jsonl"
        write_passages(file, _corpus(corpus))
        start = folder / f"vectors-{self.model.fingerprint[:16]}"
        embed_shard(self.model, PassageSource(file), EmbedConfig(out_file=str(start)))
        self._shards = open_shards([f"{start}_0"])

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> dict[str, dict[str, float]]:
        """The best ``top_k`` passages of each question with their scores; of ``top_ranked`` where a task
        lists what is to be ranked."""
        ids, texts = [str(key) for key in queries["id"]], [_question_text(row) for row in queries]
        retriever = DenseRetriever(
            self.model, ExactIndex(self._shards, device=self.model.device), form=self._form(task_metadata)
        )
        if top_ranked is None:
            return {
                key: dict(ranking) for key, ranking in zip(ids, retriever.retrieve(texts, top_k), strict=True)
            }
        vectors = self._vectors_of({str(passage) for listed in top_ranked.values() for passage in listed})
        best = {}
        for key, vector in zip(ids, retriever.encode(texts), strict=True):
            scores = {
                str(passage): float(vector.astype(np.float64) @ vectors[str(passage)])
                for passage in top_ranked.get(key, ())
            }
            best[key] = dict(sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:top_k])
        return best

    def _form(self, task_metadata: Any) -> QuestionForm:
        """What is put before the questions of a task."""
        prompt = task_metadata.prompt if self.instruction else None
        stated = prompt.get("query") if isinstance(prompt, Mapping) else prompt
        return QuestionForm(query_prefix=self.instruction.format(instruction=stated) if stated else None)

    def _vectors_of(self, wanted: set[str]) -> dict[str, np.ndarray]:
        by_id = {}
        for shard in self._shards:
            for ids, vectors in shard.chunks():
                for row, key in enumerate(ids.tolist()):
                    if (name := key.decode()) in wanted:
                        by_id[name] = vectors[row].astype(np.float64)
        if missing := wanted - by_id.keys():
            raise InputError(
                f"{len(missing)} passages to rank are not in the corpus, the first is {min(missing)!r}"
            )
        return by_id


def task_sets(names: Sequence[str], folder: Path) -> list[TestSet]:
    """Retrieval tasks of mteb as test sets, one for each subset and split; their data is written below
    ``folder`` once.

    Raises:
        ConfigError: mteb is not installed.
        InputError: there is no such retrieval task, or its data cannot be had.
    """
    return [each for name in names for each in _sets_of(name, folder / name)]


def _sets_of(name: str, folder: Path) -> list[TestSet]:
    if not folder.exists():
        task = _loaded_task(name)
        metadata: dict[str, Any] = {"kind": "mteb task", "dataset": dict(task.metadata.dataset), "sets": []}
        with durable_folder(folder, metadata=metadata) as temporary:
            for subset, splits in sorted(task.dataset.items()):
                for split in splits:
                    parts = [
                        name,
                        *([subset] if subset != "default" else []),
                        *([split] if len(splits) > 1 else []),
                    ]
                    _write_set(temporary / "-".join(parts), splits[split])
                    metadata["sets"].append(
                        {"name": "-".join(parts), "skip_same_id": bool(task.ignore_identical_ids)}
                    )
    elif problems := verify_folder(folder):
        raise InputError(problems[0], file=folder, hint="remove the folder, and it is written again")
    sets = []
    for entry in read_manifest(folder)["metadata"]["sets"]:
        place = folder / entry["name"]
        files = place / "corpus.jsonl", place / "queries.jsonl", place / "qrels.tsv"
        sets.append(
            TestSet(entry["name"], *files, options=SuiteSetConfig(skip_same_id=entry["skip_same_id"]))
        )
    return sets


def _loaded_task(name: str) -> Any:
    mteb = require("mteb", extra="mteb", purpose=PURPOSE)
    hint = "its data must be in the cache of Hugging Face data sets, or the network reachable"
    try:
        task = mteb.get_task(name)
    except KeyError as error:
        raise InputError(
            f"mteb has no task {name} ({str(error)[:200]})", expected="such as mteb:SciFact"
        ) from None
    if not hasattr(task, "convert_v1_dataset_format_to_v2") or "Retrieval" not in str(task.metadata.type):
        raise InputError(
            f"mteb's task {name} is of type {task.metadata.type}",
            expected="a retrieval task; mteb.evaluate runs the others",
        )
    try:
        task.load_data()
        task.convert_v1_dataset_format_to_v2(num_proc=None)
    except DprError:
        raise
    except Exception as error:  # data sets raise anything, from no network to a changed column
        raise InputError(
            f"the data of mteb's task {name} cannot be had ({type(error).__name__}: {str(error)[:200]})",
            hint=hint,
        ) from error
    return task


def _write_set(folder: Path, data: Mapping[str, Any]) -> None:
    folder.mkdir()
    write_passages(folder / "corpus.jsonl", _corpus(data["corpus"]))
    write_questions(
        folder / "queries.jsonl", (Question(_question_text(row), str(row["id"])) for row in data["queries"])
    )
    qrels = {
        str(key): {str(passage): int(grade) for passage, grade in grades.items()}
        for key, grades in data["relevant_docs"].items()
    }
    write_qrels(folder / "qrels.tsv", qrels)


def _corpus(rows: Iterable[Mapping[str, Any]]) -> Iterator[Passage]:
    """Rows of a task's corpus. In batches of mteb ``text`` is title and body joined, and ``body`` stands
    beside it."""
    return (
        Passage(row.get("body", row.get("text")) or "", row.get("title") or "", str(row["id"]))
        for row in rows
    )


def _passages(batch: Mapping[str, Any]) -> list[Passage]:
    bodies = list(batch["body"] if "body" in batch else batch["text"])
    titles = batch["title"] if "body" in batch and "title" in batch else [""] * len(bodies)
    return [Passage(body or "", title or "") for body, title in zip(bodies, titles, strict=True)]


def _question_text(row: Mapping[str, Any]) -> str:
    text = row["text"]
    if not isinstance(text, str):
        raise InputError(
            f"question {row['id']!r} is {type(text).__name__}",
            expected="a text; conversations are not supported",
        )
    return f"{text} {row['instruction']}" if row.get("instruction") else text
