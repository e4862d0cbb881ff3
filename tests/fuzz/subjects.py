"""Every reader of files, each with a file that it reads and the ways in which that is damaged."""

import gzip
import io
import json
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dpr.core.errors import InputError
from dpr.embedding.source import PassageSource
from dpr.evaluation.runs import Retrieval, read_training
from dpr.formats.checkpoints import read_settings, read_tensors
from dpr.formats.corpora import check_unique_ids, read_passages
from dpr.formats.downloads import unpack
from dpr.formats.metrics_files import read_evaluation, read_metrics
from dpr.formats.original.checkpoints import read_dpr_checkpoint
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.formats.results import read_trec_run
from dpr.formats.run_folders import resolve_checkpoint
from dpr.formats.text_store import open_store
from dpr.formats.training_files.registry import READERS, read_rows
from dpr.formats.training_files.rows import ReadOptions
from dpr.formats.training_sets import open_training_set
from dpr.formats.vector_shards import VectorShard, VectorShardWriter, open_shards
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.search_json import SearchSettings
from dpr.retrieval.suites import read_suite
from dpr.storage.durable import MANIFEST, durable_folder, read_manifest, verify_folder, write_manifest
from dpr.training.checkpointing import CheckpointFolder
from tests.fuzz.foreign_subjects import FOREIGN
from tests.fuzz.mutations import BYTES, JSON, TABLE, TEXT, Mutation
from tests.fuzz.subject import Files, Subject, contents, lines
from tests.helpers.jobs import compare
from tests.helpers.original import flat_params, nested_params, original_extras, write_original
from tests.helpers.tiny import tiny_model

_SAMPLE = {
    "question": "who wrote it",
    "answers": ["Ann", 7],
    "positive_ctxs": [{"title": "Té", "text": 'Ann wrote "it"\n twice.', "passage_id": "1", "score": 3.5}],
    "negative_ctxs": [{"text": "Bob read it.", "id": 12}],
    "hard_negative_ctxs": None,
}
_METRICS = {
    "question_set": "test",
    "num_questions": 3,
    "indexer": "bm25",
    "metrics": {"accuracy@1": 2 / 3, "mrr@10": 0.625},
    "first_right_rank": {"counts": [2, 0, 1], "not_found": 0},
    "per_question": {
        "ids": ["1", "2", "3"],
        "questions": ["a", "b", "c"],
        "values": {"accuracy@1": [1.0, 0.0, 1.0], "mrr@10": [1.0, 0.25, None]},
    },
}
_EVALUATION = {
    "sets": ["one", "two"],
    "systems": ["bm25", "dense"],
    "figures": {"one": {"bm25": {"ndcg@10": {"mean": 0.5}}}},
}
_SUITE = b"""sets:
  one: data
  two: {folder: data, split: test, query_prefix: "query: ", skip_same_id: true}
"""
_SEARCH = {
    "schema": 1,
    "model_file": "model",
    "encoded_ctx_files": ["vectors_*"],
    "passages": [
        {
            "file": "c.tsv",
            "name": "c",
            "id_col": 0,
            "text_col": 1,
            "title_col": 2,
            "id_prefix": "",
            "normalize": False,
        }
    ],
    "indexer": {"kind": "exact"},
    "hybrid_weight": 0.5,
    "form": {"prefix": None, "suffix": None, "selector": None, "encoder_type": "question"},
}
_STATE = {
    "progress": {"step": 3, "best_metric": "eval/nll_loss", "best_value": 1.5, "last_metrics": {"a": 1.0}},
    "identity": {"fixed": {"seed": 1}, "free": {"environment.torch": "2"}},
}


def _read_training(path: Path) -> None:
    opened = open_training_set(
        [path], name="t", cache_dir=path.parent / "cache", on_bad_row="skip", max_bad_rows=2
    )
    for row in range(len(opened)):
        assert opened[row].positives
        opened.known_positives(row)


def _read_passages(path: Path) -> None:
    PassageSource(path).identity()
    check_unique_ids(path)
    assert all(passage.id for passage in read_passages(path))


def _read_metrics(path: Path) -> None:
    found = Retrieval("x", read_metrics(path))
    assert found.num_judged is not None
    compare([f"a={path}"])
    compare([f"a={path}", f"b={path}"])


def _read_shard(path: Path) -> None:
    shard = VectorShard(path.parent, verify=False)
    for ids, vectors in shard.chunks():
        vectors.sum(), ids.tolist()
    open_shards([path.parent])


@cache
def _shard_files(dtype: str = "float32") -> Files:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "v_0"
        writer = VectorShardWriter(
            folder,
            metadata={"model_fingerprint": "m", "shard_id": 0, "num_shards": 1},
            dimension=4,
            dtype=dtype,
        )
        writer.write_chunk(0, ["1", "2", "é"], np.ones((3, 4), dtype=np.float32))
        writer.finish(1)
        return contents(folder, "v_0")


@cache
def _checkpoint_files() -> Files:
    with tempfile.TemporaryDirectory() as temporary:
        torch.manual_seed(0)
        model = tiny_model(Path(temporary) / "encoder", dtype=torch.float32, shared=True)
        with durable_folder(Path(temporary) / "c") as folder:
            model.write_to(folder)
        return contents(Path(temporary) / "c", "c")


def _agreeing_manifest(folder: Path) -> None:
    (folder / "c" / MANIFEST).unlink()
    write_manifest(folder / "c", {})


def _load_checkpoint(path: Path) -> None:
    folder = next(parent for parent in path.parents if (parent / MANIFEST).is_file())
    BiEncoder.load(folder).encode_questions(["ba be"])


@cache
def _original(nested: bool, as_zip: bool) -> Files:
    with tempfile.TemporaryDirectory() as temporary:
        weights = original_extras(
            {"question_model.a": torch.ones(2, 3), "ctx_model.a": torch.zeros(3).half()}, 2
        )
        params = (nested_params if nested else flat_params)("bert-tiny")
        return {"x.cp": write_original(Path(temporary) / "x.cp", weights, params, as_zip=as_zip).read_bytes()}


def _checkpoint_part(name: str, kinds: tuple[Mutation, ...] = JSON) -> Subject:
    return Subject(
        f"c/{name}", _checkpoint_files, _load_checkpoint, kinds, weight=0.2, beforehand=_agreeing_manifest
    )


_SQUAD = {
    "version": "1",
    "data": [
        {
            "title": "A_b",
            "paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": [{"text": "a"}]}]}],
        }
    ],
}
_TEVATRON = {
    "query_id": "1",
    "query": "q",
    "positive_passages": [{"docid": 1, "title": None, "text": "t"}],
    "negative_passages": [],
}
_COLUMNS = {"anchor": "q", "positive": "a", "negative_1": "b", "score": 1.5}
_TRIPLES = 'who\u2019s it?\tAnn\tBob\nwho?\tAnn\t"Bob\n'.encode()


def _parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue().to_pybytes())


def _read_foreign(path: Path) -> None:
    """Every row comes out good or bad; what no format fits is refused."""
    options = ReadOptions(partial(open_store, cache_dir=path.parent / "cache"))
    errors = [row.error for row in read_rows(path, options) if row.error]
    assert all(isinstance(error, InputError) and path.parent.name in str(error) for error in errors)


def _arrow_stream() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"query": ["q"] * 9, "positive": [["a", "b"]] * 9, "answers": [{"text": ["x"]}] * 9})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _saved_dataset() -> Files:
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0"}
    return {
        "d/train/state.json": json.dumps(state).encode(),
        "d/train/data-00000-of-00001.arrow": _arrow_stream(),
        "d/dataset_dict.json": b'{"splits": ["train", "test"]}',
    }


def _archive(kind: str) -> bytes:
    out = io.BytesIO()
    content = bytes(range(256)) * 8
    if kind == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("a/b.txt", content)
            zipped.writestr("c.txt", b"x")
    else:
        with tarfile.open(fileobj=out, mode=kind) as packed:
            for name in ("a/b.txt", "c.txt"):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _unpack(path: Path) -> None:
    """Whatever an archive holds, nothing appears beside its folder."""
    before = set(path.parent.iterdir())
    try:
        unpack(path, path.parent / "out", max_files=50, max_bytes=10**6)
        assert {"out"} >= {found.name for found in set(path.parent.iterdir()) - before}
    except InputError:
        assert set(path.parent.iterdir()) == before
        raise


def _file(
    name: str,
    data: bytes,
    read: Callable[[Path], Any],
    kinds: tuple[Mutation, ...],
    has_lines: bool = False,
    weight: float = 1.0,
) -> Subject:
    """A file that lies alone."""
    return Subject(name, lambda: {name: data}, read, kinds, has_lines, weight)


def _foreign(name: str, data: bytes, kinds: tuple[Mutation, ...], **baseline_of: bytes) -> Subject:
    return Subject(
        name,
        lambda: {name: data} | {f"{other}.jsonl": content for other, content in baseline_of.items()},
        _read_foreign,
        kinds,
    )


_VECTORS = [(f"wiki:{row}", np.ones(5, dtype=np.float32)) for row in range(3)]
_MANIFEST = b'{"schema": 1, "tool": "x", "metadata": {}, "files": {"a": {"bytes": 1, "sha256": "0"}}}'
_TSV = 'id\ttext\ttitle\n1\t"a ""quoted"" text\nin two lines"\tT\n2\tplain\té\n'.encode()
_QUESTIONS = b"who?\t['Ann', 'Bob\\'s']\nwhat?\t[\"x\", 3]\n"

_TEVATRON_IDS = {
    "query_id": "1",
    "query_text": "who?",
    "positive_document_ids": ["d1"],
    "negative_document_ids": ["d2", "7"],
}
_ID_COLUMNS = {"query_id": "1", "positive_id": "d1", "negative_ids": ["d2", 7]}


_CORPORA = {
    "corpus.jsonl": lines(
        {"_id": "d1", "text": "x"}, {"docid": "d2", "title": "T", "text": "y"}, {"_id": 7, "contents": "z"}
    ),
    "corpus.tsv": b'id\ttext\ttitle\nd1\tx\t\nd2\t"y ""y"""\tT\n7\tz\tU\n',
    "collection.tsv": b'd1\tx\nd2\ty\n7\t"z\n',
    "corpus.parquet": _parquet(docid=["d1", "d2", "7"], title=["", "T", None], text=["x", "y", "z"]),
}
_QUERIES = b"1\twho?\n2\twhat?\n"
_ROWS = {
    "tevatron": lines(*[_TEVATRON_IDS] * 3),
    "triples": b"1\td1\td2\n1\td1\t7\n2\t7\td1\n",
    "pairs": b"1\td1\n1\td2\n2\t7\n",
    "columns": lines(*[_ID_COLUMNS] * 3),
}


def _lookup(
    target: str,
    kinds: tuple[Mutation, ...],
    *,
    rows: str = "triples",
    corpus: str = "corpus.jsonl",
    has_lines: bool = False,
) -> Subject:
    """``target``: rows, queries.tsv, or the name of the corpus."""

    def files() -> Files:
        return {"rows": _ROWS[rows], "queries.tsv": _QUERIES, corpus: _CORPORA[corpus]}

    def read(path: Path) -> None:
        place = {name: path if name == target else path.parent / name for name in files()}
        options = ReadOptions(
            partial(open_store, cache_dir=path.parent / "cache"),
            corpus=place[corpus],
            queries=None if rows == "tevatron" else place["queries.tsv"],
        )
        found = list(READERS[rows](place["rows"], options))
        assert all(
            isinstance(row.error, InputError) and row.file == place["rows"] for row in found if row.error
        )
        assert all(
            passage.id and passage.text is not None
            for row in found
            if row.sample
            for passage in row.sample.positives
        )

    return Subject(target, files, read, kinds, has_lines, weight=0.5)


SUBJECTS: dict[str, Subject] = {
    "training array": _file(
        "t.json", json.dumps([_SAMPLE] * 3, indent=1).encode(), _read_training, JSON, True, 0.6
    ),
    "training lines": _file("t.jsonl", lines(*[_SAMPLE] * 3), _read_training, JSON, True, 0.6),
    "training gzip": _file(
        "t.jsonl.gz", gzip.compress(lines(*[_SAMPLE] * 3), mtime=0), _read_training, BYTES, weight=0.5
    ),
    "squad": _foreign("s.json", json.dumps(_SQUAD, indent=1).encode(), JSON),
    "tevatron": _foreign("v.jsonl", lines(*[_TEVATRON] * 3), JSON),
    "flagembedding": _foreign("f.jsonl", lines(*[{"query": "q", "pos": ["a", "b"], "neg": ["c"]}] * 3), JSON),
    "triples": _foreign("t.tsv", _TRIPLES, TABLE),
    "columns": _foreign("c.jsonl", lines(*[_COLUMNS] * 3), JSON),
    "arrow stream": _foreign("data.arrow", _arrow_stream(), BYTES),
    "saved dataset": Subject(
        "d/train/data-00000-of-00001.arrow",
        _saved_dataset,
        lambda path: _read_foreign(path.parents[1]),
        BYTES,
    ),
    "zip": _file("x.zip", _archive("zip"), _unpack, BYTES),
    "parquet": _foreign("c.parquet", _parquet(query=["q"] * 9, positive=[["a", "b"]] * 9), BYTES),
    "beir": _foreign(
        "qrels/train.tsv",
        b"query-id\tcorpus-id\tscore\n1\td1\t2\n2\td2\t0\n2\td1\t1\n",
        TABLE,
        corpus=lines({"_id": "d1", "text": "y"}, {"_id": "d2", "text": "z"}),
        queries=lines({"_id": "1", "text": "x"}, {"_id": "2", "text": "w"}),
    ),
    "passages tsv": _file("p.tsv", _TSV, _read_passages, TABLE, True),
    "passages lines": _file(
        "p.jsonl",
        lines({"_id": "1", "title": "t", "text": "x"}, {"_id": 2, "text": "y"}),
        _read_passages,
        JSON,
        True,
    ),
    "questions csv": _file("q.csv", _QUESTIONS, read_questions, TABLE, True),
    "questions tsv with ids": _file(
        "q.tsv",
        b"who?\t['Ann']\tq1\nwhat?\t[]\tq2\n",
        lambda path: read_questions(path, id_col=2),
        TABLE,
        True,
    ),
    "questions lines": _file(
        "q.jsonl",
        lines({"question": "a", "answers": ["b"], "id": 1}, {"_id": "x", "text": "y", "answer": "z"}),
        read_questions,
        JSON,
        True,
    ),
    "qrels tsv": _file("r.tsv", b"query-id\tcorpus-id\tscore\n1\td1\t2\n2\td2\t1\n", read_qrels, TABLE, True),
    "qrels trec": _file("r.txt", b"1 0 d1 2\n2 0 d2 1\n", read_qrels, TABLE, True),
    "run": _file("run.trec", b"1 Q0 d1 1 3.5 dpr\n1 Q0 d2 2 1e-3 dpr\n", read_trec_run, TABLE, True),
    "metrics file": _file("m.json", json.dumps(_METRICS).encode(), _read_metrics, JSON),
    "evaluation": _file(
        "e/results.json", json.dumps(_EVALUATION).encode(), lambda path: read_evaluation(path.parent), JSON
    ),
    "suite": Subject(
        "suite.yaml",
        lambda: {
            "suite.yaml": _SUITE,
            "data/corpus.jsonl": b"",
            "data/queries.jsonl": b"",
            "data/qrels/test.tsv": b"",
        },
        read_suite,
        TEXT,
    ),
    "metrics lines": _file(
        "run/metrics.jsonl",
        lines({"step": 1, "train/loss": 2.0}, {"step": 2, "eval/nll_loss": 1.0}),
        lambda path: read_training(path.parent),
        JSON,
    ),
    "search settings": _file(
        "search.json", json.dumps(_SEARCH).encode(), lambda path: SearchSettings.read(path.parent), JSON
    ),
    "manifest": _file(
        "m/manifest.json",
        _MANIFEST,
        lambda path: (verify_folder(path.parent), read_manifest(path.parent)),
        JSON,
    ),
    "shard manifest": Subject("v_0/manifest.json", _shard_files, _read_shard, JSON),
    "shard vectors": Subject("v_0/vectors-00000.npy", _shard_files, _read_shard, BYTES),
    "shard codes": Subject("v_0/vectors-00000.npy", partial(_shard_files, "int8"), _read_shard, BYTES),
    "shard scales": Subject("v_0/scales-00000.npy", partial(_shard_files, "int8"), _read_shard, BYTES),
    "shard ids": Subject("v_0/ids-00000.npy", _shard_files, _read_shard, BYTES),
    "run.json": _file(
        "run/run.json",
        json.dumps({"last_checkpoint": "x.step1", "best_checkpoint": None}).encode(),
        lambda path: resolve_checkpoint(path.parent),
        JSON,
    ),
    "trainer state": _file(
        "trainer_state.json",
        json.dumps(_STATE).encode(),
        lambda path: CheckpointFolder.read_state(path.parent),
        JSON,
    ),
    "encoder settings": Subject(
        "c/encoder_settings.json", _checkpoint_files, lambda path: read_settings(path.parent), JSON
    ),
    "safetensors": Subject(
        "c/model.safetensors",
        _checkpoint_files,
        lambda path: read_tensors(path.parent, path.name),
        BYTES,
        weight=0.5,
    ),
    "checkpoint settings": _checkpoint_part("encoder_settings.json"),
    "checkpoint config": _checkpoint_part("encoder/config.json"),
    "checkpoint tokenizer": _checkpoint_part("encoder/tokenizer.json"),
    "checkpoint weights": _checkpoint_part("model.safetensors", BYTES),
    "original flat zip": Subject(
        "x.cp", lambda: _original(False, True), read_dpr_checkpoint, BYTES, weight=0.7
    ),
    "original nested sequence": Subject(
        "x.cp", lambda: _original(True, False), read_dpr_checkpoint, BYTES, weight=0.7
    ),
    "original vectors": _file("v_0", pickle.dumps(_VECTORS, protocol=4), PickledVectors, BYTES),
    "original vectors of 2020": _file("v_0", pickle.dumps(_VECTORS, protocol=3), PickledVectors, BYTES),
    "tevatron ids": _lookup("rows", JSON, rows="tevatron"),
    "triples of ids": _lookup("rows", TABLE),
    "pairs of ids": _lookup("rows", TABLE, rows="pairs"),
    "columns of ids": _lookup("rows", JSON, rows="columns"),
    "looked up lines": _lookup("corpus.jsonl", JSON, has_lines=True),
    "looked up tsv": _lookup("corpus.tsv", TABLE, corpus="corpus.tsv", has_lines=True),
    "looked up columns": _lookup("collection.tsv", TABLE, corpus="collection.tsv", has_lines=True),
    "looked up parquet": _lookup("corpus.parquet", BYTES, corpus="corpus.parquet"),
    "looked up questions": _lookup("queries.tsv", TABLE, has_lines=True),
    **FOREIGN,
}
