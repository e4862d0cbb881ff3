"""What every command is tried with: tiny inputs, a command line, and what its outputs must be."""

import hashlib
import json
import pickle
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dpr.core.records import Passage, Question, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.metrics_files import PerQuestion, write_metrics
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.results import write_trec_run
from dpr.formats.training_files.dpr import write_training_set
from dpr.storage.checksums import verify_file
from dpr.storage.durable import CHECKSUM
from tests.faults.command_server import serve
from tests.faults.runs import final_hash
from tests.helpers.original import flat_params, original_names, write_original
from tests.helpers.patience import patient
from tests.helpers.processes import Served
from tests.helpers.tiny import encoder_folder, make_samples, sentence, static_folder, tiny_model

LIMIT_S = 120.0
DOWNLOADED = random.Random(0).randbytes(3_000_000)
DIGEST = hashlib.sha256(DOWNLOADED).hexdigest()
DENSE = "model_file=in/model no_cuda=true"
ASKED = "qa_dataset=in/questions.jsonl qrels=in/qrels.tsv ctx_datatsets=[in/corpus.tsv] n_docs=5"
MINED = "in/train.json corpus=in/corpus.tsv allow_missing=true out=out/mined.jsonl"
STUDENT = (
    "train train_datasets=in/ids.jsonl output_dir=out/run encoder.sequence_length=24 train.batch_size=8"
    " train.num_train_epochs=2 train.warmup_steps=1 train.save_every_steps=2 train.log_batch_step=3"
    " no_cuda=true"
)


SUITE = {
    "set/corpus.tsv": "corpus.tsv",
    "set/queries.jsonl": "questions.jsonl",
    "set/qrels/test.tsv": "qrels.tsv",
}
"""Files of the set, which suite.yaml names too, and what they are copies of."""


JOBS = {
    "prepare": "prepare in/pairs.tsv on_bad_row=skip out=out/train.jsonl",
    "prepare to=tevatron": "prepare in/train.json to=tevatron out=out/train.jsonl.gz",
    "prepare to=beir": "prepare in/train.json to=beir out=out/beir",
    "examples.docstring_corpus": "examples.docstring_corpus --packages tqdm filelock --dev 5 --test 5"
    " --processes 1 --out out/data",
    "prepare-folder": "prepare in/docs out=out/data questions=in/faq.tsv",
    "prepare-pairs": "prepare in/corpus.tsv pairs=mixed out=out/pairs rounds=2",
    "new-encoder": "new-encoder --corpus in/corpus.tsv --out out/encoder --vocab-size 120 --hidden 16",
    "export to=dpr": "export to=dpr model_file=in/model allow_other_vectors=true out_file=out/x.cp",
    "export to=hf-dpr": "export to=hf-dpr model_file=in/model out=out/hf",
    "export to=vectors": "export to=vectors model_file=in/model encoded_ctx_files=[in/wiki_*]"
    " out_file=out/wiki",
    "embed": f"embed {DENSE} ctx_src=in/corpus.tsv out_file=out/vectors chunk_size=16",
    "retrieve indexer=bm25": f"retrieve indexer=bm25 {ASKED} bm25_index_path=out/bm25"
    " out_file=out/results.json.gz trec_run_file=out/run.trec metrics_file=out/metrics.json search_folder=out",
    "retrieve indexer=ivf": f"retrieve indexer=ivf {DENSE} {ASKED} encoded_ctx_files=[in/vectors_0]"
    " index_path=out/index out_file=out/results.json",
    "evaluate": f"evaluate suite=in/suite.yaml {DENSE} output_dir=out/suite n_docs=5",
    "evaluate run_file": "evaluate run_file=in/a.run qrels=in/qrels.tsv metrics_file=out/metrics.json",
    "mine": f"mine {MINED}",
    "mine model_file": f"mine {MINED} model_file=in/model device=cpu",
    "score": "score in/train.json corpus=in/corpus.tsv model_file=in/model device=cpu hybrid=linear"
    " out=out/scored.jsonl",
    "compare": "compare a=in/a.json b=in/b.json --out out/table.json",
    "report": "report in/run a=in/a.json --out out/report.html",
    "download": f"download x output_dir=out resources.x.url=URL/x.bin resources.x.sha256={DIGEST}",
    "train": "train train_datasets=in/train.json dev_datasets=in/dev.json output_dir=out/run"
    " encoder.pretrained_model_cfg=in/encoder encoder.pretrained=false encoder.sequence_length=24"
    " train.batch_size=8 train.num_train_epochs=2 train.warmup_steps=1 train.hard_negatives=0"
    " train.save_every_steps=2 no_cuda=true",
    "train loss.teacher": f"{STUDENT} loss.teacher=in/vectors_0 loss.guide=[in/vectors_0]"
    " encoder.projection_dim=16 encoder.pooling=idf encoder.pretrained_model_cfg=in/static"
    " train.best_metric=eval/questions/mrr@10 train.validation=[{kind:retrieval,corpus:in/corpus.tsv,"
    "questions:in/questions.jsonl,qrels:in/qrels.tsv}]",
    "train model_file": f"{STUDENT} model_file=in/model loss.teacher=in/other",
    "merge": "merge tuned=in/model base=in/other weights=[0.3,0.6] set=in/set split=test device=cpu"
    " out=out/merged",
    "merge of two": "merge tuned=[in/model,in/other] device=cpu out=out/merged",
}
"""Command lines, relative to a folder with the inputs in ``in``."""
MADE_OF_CACHE = {"evaluate": "out/suite/set"}
"""An output that a command makes from its cache; while it is there, the cache is not read."""
TRAININGS = ("train", "train loss.teacher", "train model_file")
"""What it leaves holds times, so that only some of it is compared."""
STAGED = {
    "quickstart": "quickstart in/docs out=out/run device=cpu",
    "adapt": "adapt in/corpus.tsv out=out/run max_pairs=300 device=cpu",
    "adapt static": "adapt in/corpus.tsv model_file=in/one_tower static=both out=out/run max_pairs=100 device=cpu",
    "adapt train": "adapt in/corpus.tsv model_file=in/one_tower train=in/labels.tsv out=out/run device=cpu",
}
"""All stages in one process: too long to be tried as often as the others."""
_WITH_TIMES = ("stage.json", "run.json", "metrics.jsonl", "report.html", "log.txt")  # of its stages


def make_inputs(folder: Path) -> None:
    """The files that the jobs read."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    passages = [Passage(sentence(rng, 10), sentence(rng, 2), f"p{number:03d}") for number in range(40)]
    write_passages(folder / "corpus.tsv", passages)
    labels = [f"{' '.join(rng.sample(one.text.split(), 4))}\t{one.text}\n" for one in passages * 5]
    (folder / "labels.tsv").write_text("".join(labels))
    questions = [
        Question(" ".join(rng.sample(passage.text.split(), 4)), f"q{number}")
        for number, passage in enumerate(passages[:8])
    ]
    write_questions(folder / "questions.jsonl", questions)
    write_qrels(
        folder / "qrels.tsv",
        {question.id: {str(passages[number].id): 1} for number, question in enumerate(questions)},
    )
    (folder / "set" / "qrels").mkdir(parents=True)
    for name, source in SUITE.items():
        shutil.copyfile(folder / source, folder / name)
    (folder / "suite.yaml").write_text("sets: {set: set}")
    write_trec_run(
        folder / "a.run",
        {question.id: [(str(passage.id), rng.random()) for passage in passages] for question in questions},
    )
    write_training_set(folder / "train.json", make_samples(24))
    write_training_set(folder / "dev.json", make_samples(6, seed=1))
    rows = [f"{sentence(rng, 4)}\t{sentence(rng, 8)}" for _ in range(12)]
    (folder / "pairs.tsv").write_text("\n".join([*rows[:6], "a row of one column", *rows[6:]]) + "\n")
    encoder_folder(folder / "encoder")
    model = tiny_model(folder / "encoder", dtype=torch.float32)
    model.save(folder / "model")
    tiny_model(folder / "encoder", seed=1, dtype=torch.float32).save(folder / "other")
    one = tiny_model(folder / "encoder", dtype=torch.float32, pooling="mean", normalize=True, shared=True)
    one.save(folder / "one_tower")
    static_folder(folder / "static")
    rows = zip(questions, passages, passages[1:], strict=False)
    write_training_set(
        folder / "ids.jsonl",
        [TrainingSample(asked.text, (right,), (wrong,)) for asked, right, wrong in rows] * 3,
    )
    write_original(folder / "x.cp", original_names(model.weights()), flat_params(str(folder / "encoder")))
    vectors = np.asarray(model.encode_passages(passages))
    for number in range(2):
        part = list(zip([item.id for item in passages], vectors, strict=True))[number * 20 : number * 20 + 20]
        (folder / f"wiki_{number}").write_bytes(pickle.dumps(part))
    for name in ("a", "b"):
        values = {metric: [rng.random() for _ in range(8)] for metric in ("mrr@10", "accuracy@1")}
        means = {metric: sum(of_questions) / 8 for metric, of_questions in values.items()}
        report = {"question_set": "q", "num_questions": 8, "metrics": means}
        each = PerQuestion([f"q{row}" for row in range(8)], [sentence(rng, 4) for _ in range(8)], values)
        write_metrics(folder / f"{name}.json", report, each)
    (folder / "docs").mkdir()
    for number in range(5):
        sections = (f"## {sentence(rng, 5)}\n\n{sentence(rng, 8)}. {sentence(rng, 20)}.\n" for _ in range(8))
        (folder / "docs" / f"page{number}.md").write_text(f"# {sentence(rng, 5)}\n\n" + "\n".join(sections))
    (folder / "faq.tsv").write_text("".join(f"{sentence(rng, 6)}?\tpage{row % 5}.md\n" for row in range(12)))
    (folder / "run").mkdir()
    lines = [{"step": step, "epoch": 0, "train/loss": 1 / step, "time": 0.0} for step in range(1, 9)]
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@dataclass(frozen=True)
class Result:
    """How one process ended."""

    code: int
    text: str
    counts: dict[str, int]


class Commands:
    """Starts commands, each in its own folder. ``whole`` remembers what an undisturbed one leaves."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        make_inputs(folder / "in")
        self._undisturbed: dict[str, tuple[dict[str, bytes], Result]] = {}
        self._server = Served(serve)
        made = self.run("embed", self.folder / "first")
        assert made.code == 0, made.text
        shutil.copytree(self.folder / "first" / "out" / "vectors_0", self.folder / "in" / "vectors_0")

    def close(self) -> None:
        self._server.close()

    def run(self, name: str, folder: Path, *, fault: str = "", number: int = 0) -> Result:
        """One process of a job, in ``folder``, which is made if it is not there."""
        return self.run_together(name, folder, count=1, fault=fault, number=number)[0]

    def run_together(
        self, name: str, folder: Path, *, count: int, fault: str = "", number: int = 0
    ) -> list[Result]:
        """Several processes of a job at once."""
        if not folder.exists():
            shutil.copytree(self.folder / "in", folder / "in")
        child = {
            "arguments": (JOBS | STAGED)[name].replace("URL", self.url).split(),
            "folder": str(folder),
            "environment": {"DPR_CACHE": str(folder / "cache"), "TMPDIR": str(self.folder)},
            "fault": fault,
            "number": number,
        }
        answers = self._server.ask({"children": [child] * count, "limit_s": patient(LIMIT_S)})
        return [Result(**answer) for answer in answers]

    def folder_of(self, name: str) -> Path:
        """Where the job was run when nothing happened to it."""
        return self.folder / re.sub(r"\W", "-", name)

    def undisturbed(self, name: str) -> tuple[dict[str, bytes], Result]:
        """What a job leaves, and how it ended, when nothing happens to it."""
        if name not in self._undisturbed:
            folder = self.folder_of(name)
            result = self.run(name, folder)
            assert result.code == 0, result.text
            self._undisturbed[name] = left_by(name, folder), result
        return self._undisturbed[name]


def left_by(name: str, folder: Path) -> dict[str, bytes]:
    """Returns the outputs of a job by name; of a training what decides how it continues; of a curve all but times."""
    files = [path for path in sorted((folder / "out").rglob("*")) if path.is_file()]
    if name in TRAININGS:
        run = json.loads((folder / "out" / "run" / "run.json").read_text())
        return {
            "checkpoint": final_hash(folder / "out" / "run").encode(),
            "run.json": run["last_checkpoint"].encode(),
        }
    if name in STAGED:
        files = [path for path in files if path.name.removesuffix(CHECKSUM) not in _WITH_TIMES]
    return {
        str(path.relative_to(folder)): _timeless(path) if "curve." in path.name else path.read_bytes()
        for path in files
    }


def _timeless(path: Path) -> bytes:
    if path.suffix != ".json":
        return b"" if path.suffix == CHECKSUM else str(verify_file(path)).encode()
    curve = json.loads(path.read_text())
    points = [{**point, "time": None} for point in curve["points"]]
    return json.dumps({**curve, "exact": None, "points": points, "problems": verify_file(path)}).encode()


def unfinished_business(folder: Path) -> list[str]:
    """Returns temporary files, folders set aside and locks, which should be gone when a command has ended well."""
    found = [path for path in folder.rglob("*") if path.name.startswith((".tmp-", ".old-"))]
    return [str(path) for path in [*found, *(folder / "out").rglob("*.lock")]]


def check_plain(result: Result, codes: Sequence[int]) -> None:
    """It ended with one of these codes and without a traceback."""
    assert "Traceback" not in result.text, result.text
    assert result.code in codes, f"exit {result.code}\n{result.text}"
