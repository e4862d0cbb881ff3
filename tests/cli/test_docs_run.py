"""Every command and every program that stands in a block of README.md or docs/*.md runs as it stands, page by page in the
order of the page, in a folder that a reader would have.

The folder is empty at first. What a page takes as given (data, a downloaded model, an earlier run) is put there, small,
under the name that a command uses, before the first command that reads it: GIVEN. Commands run in bash; what is not run
as it stands is in LEFT_OUT and INSTEAD.

pytest tests/cli/test_docs_run.py               README.md alone, as in make test
pytest tests/cli/test_docs_run.py --all-docs    every page (make docs)
"""

import importlib.util
import json
import os
import pickle
import random
import re
import runpy
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dpr.core.records import Passage, Question, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_files.dpr import write_training_set
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import EncoderSettings
from tests.architecture.source_files import REPOSITORY
from tests.helpers.adapters import base_folder
from tests.helpers.decoders import decoder_folder
from tests.helpers.exports import question_writer
from tests.helpers.original import flat_params, original_names, write_original
from tests.helpers.patience import patient
from tests.helpers.published import (
    FOLDERS,
    MODERN,
    ROBERTA,
    bytes_in_brackets,
    publish,
    sentence_pieces,
    write_backbone,
)
from tests.helpers.question_files import write_csv_questions
from tests.helpers.tiny import VOCABULARY, encoder_folder, sentence
from tests.helpers.warm_dpr import warm_dpr

README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").glob("*.md"))]
LEFT_OUT = {
    r"^pip install|^git clone": "tests install nothing",
    r"^make ": "makes an environment, and trains for minutes",
    r"^dpr download|^hf (?:down|up)load": "needs a network",
    r"mteb\.get_tasks": "needs a network",
    r"tracking\.wandb=true": "needs an account",
    r"^dpr serve|^curl|openai\.": "a service, which does not end; tests/unit/serving asks it",
    r"to=pgvector": "needs a database server",
    r"cluster=ray|--nnodes=2": "needs several machines",
    r"#SBATCH": "needs Slurm",
    r"\.\.\.": "an outline of a command",
}
"""Commands and programs that are not run, and why."""
PACKAGES = {r"to=onnx|onnxruntime": "onnxruntime", r"lancedb": "lancedb"}
"""Those that need a package that the extra ``dev`` has not: they run where it is installed."""
LONG = r"train=biencoder_nq"
"""Forty epochs, which make docs alone runs."""
INSTEAD = {
    r"torchrun --nproc-per-node=8 -m dpr": "dpr",
    r"torchrun --nproc-per-node=8 (?=\w+\.py)": "python ",
    r"python -m torch\.distributed\.launch --nproc-per-node=8 (?=\w+\.py)": "python ",
}
"""Eight processes are one here, without a launcher; two are two. tests/cli/test_launchers.py starts both launchers."""
DONE_BEFORE = re.compile(r"\bfinished: |\bresuming from |: nothing to do$", re.MULTILINE)
"""What a command says that finds its output made. On a page, an earlier one has then used the same name; only starting
runs/a in several ways is meant so."""
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:dpr|python|torchrun|bash|hf|pip|make|git|curl) |for \w+ in |#!/bin/bash"
)
OUTPUT = re.compile(r'(?:--out |\b(?:out|output_dir|out_file)=)"?[\w./-]+')


@dataclass(frozen=True)
class Step:
    """A command, or a program in Python, and where it stands."""

    where: str
    code: str
    is_python: bool = False


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """The blocks of a page: number of the first line, language (empty where it is only indented), and what it holds."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        start = number
        if lines[number].startswith("```"):
            number += 1
            while not lines[number].startswith("```"):
                number += 1
            yield start + 2, lines[start][3:], "\n".join(lines[start + 1 : number])
            number += 1
        elif lines[number].startswith("    "):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            yield start + 1, "", textwrap.dedent("\n".join(lines[start:number]))
        else:
            number += 1


def steps(page: Path) -> Iterator[Step]:
    """What a page tells its reader to run, in its order; a loop or a script is one step."""
    for number, language, block in blocks(page.read_text(encoding="utf-8")):
        where = f"{page.name}:{number}"
        if language == "python" or re.match(r"(?:from|import) ", block):
            yield Step(where, block, is_python=True)
        elif block.startswith(("for ", "#!")):
            yield Step(where, block)
        else:
            joined = re.sub(r"\\\n *", "", block)
            for line in joined.splitlines():
                if COMMAND.match(line):
                    yield Step(where, line)


def is_left_out(step: Step, *, is_quick: bool) -> bool:
    if any(re.search(pattern, step.code) for pattern in LEFT_OUT) or (
        is_quick and re.search(LONG, step.code)
    ):
        return True
    needed = [package for pattern, package in PACKAGES.items() if re.search(pattern, step.code)]
    return any(importlib.util.find_spec(package) is None for package in needed)


class Workplace:
    """The folder of a page."""

    def __init__(self, folder: Path, programs: Path, page: str, *, is_quick: bool) -> None:
        self.folder = folder
        self.page = page
        self.is_quick = is_quick
        """Whether what stands in need not be enough to train on for a minute."""
        named = [int(size) for size in re.findall(r"batch_size=(\d+)", page)]
        self.few = 8 + max([32, *named])
        """Rows of .json: more than a batch has, unless it is one of a static encoder."""
        self.rows = max(self.few, 520 if "encoder=static" in page else 0)
        """Rows of .jsonl and of corpora: more than any batch has."""
        self._environment = os.environ | {
            "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            "DPR_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        self._session: dict[str, object] = {}
        for name in ("train_dense_encoder.py", "generate_embeddings.py", "dense_retriever.py", "examples"):
            (folder / name).symlink_to(REPOSITORY / name)
        self._width = 0

    def give(self, code: str) -> None:
        """Makes what the code reads and nothing has made."""
        # What training starts from unless it is told otherwise; as wide as the real one only where vectors are cut.
        width = 768 if "dimensions=[768" in code else 48
        if width != self._width:
            self._width = width
            make_bert(self, self.folder / "bert-base-uncased", hidden_size=width)
        read = OUTPUT.sub("", code)
        for name, make in GIVEN.items():
            is_named = re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-]|\.\w)", read)
            path = FILES.get(name, name)
            if not is_named or any(self.folder.glob(path)):
                continue
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            if callable(make):
                make(self, self.folder / path)
            else:
                make = make.replace("CORPUS", "corpus.jsonl" if "corpus.jsonl" in self.page else "corpus.tsv")
                self.give(make.replace(name, ""))
                exit_code, said = self.shell(make)
                assert exit_code == 0, f"{make}\n{said}"

    def shell(self, code: str) -> tuple[int, str]:
        """Runs a command; returns its exit code and what it said."""
        process = subprocess.Popen(
            ["bash", "-c", code],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=patient(300))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return -signal.SIGKILL, f"{process.communicate()[0]}\nit took too long"
        return process.returncode, said

    def command(self, step: Step) -> None:
        """Runs a command, which must succeed and make what it says it makes."""
        command = step.code
        for pattern, other in INSTEAD.items():
            command = re.sub(pattern, other, command)
        code, said = self.shell(command)
        assert code == 0, f"exit code {code}\n" + "\n".join(said.splitlines()[-12:])
        is_again = DONE_BEFORE.search(said) and not re.search(r"runs/a\b", command)
        assert not is_again, "an earlier command of the page has made this output"

    def python(self, step: Step) -> None:
        """Runs a program; it knows the names of those before it, and has the file name that its first line says."""
        named = re.match(r"# (\w+\.py)\n", step.code)
        file = self.folder / (named[1] if named else f"line{step.where.partition(':')[2]}.py")
        file.write_text(step.code, encoding="utf-8")
        self._session = runpy.run_path(str(file), init_globals=self._session)


# What pages take as given.


def passages(here: Workplace) -> list[Passage]:
    rng = random.Random(1)
    made = []
    for number in range(here.rows):
        text = " ".join(f"{sentence(rng, 7).capitalize()}." for _ in range(4))
        made.append(Passage(text, sentence(rng, 3), str(number + 1)))
    every_letter = "The quick brown fox jumps over the lazy dog."
    made[0] = Passage(f"{every_letter} {made[0].text}", made[0].title, made[0].id)
    return made


def questions(here: Workplace, *, count: int = 20) -> list[Question]:
    """Words of the first passages, with two of the words that follow as the answer."""
    made = []
    for number, passage in enumerate(passages(here)[1 : count + 1]):
        words = passage.text.replace(".", "").split()
        made.append(Question(" ".join(words[2:6]), str(number), (" ".join(words[7:9]),)))
    return made


def judgements(here: Workplace) -> dict[str, dict[str, int]]:
    return {question.id: {str(int(question.id) + 2): 1} for question in questions(here)}


def samples(here: Workplace, *, score: float | None = None) -> list[TrainingSample]:
    found = passages(here)
    rng = random.Random(2)
    made = []
    for number, passage in enumerate(found):
        words = passage.text.replace(".", "").split()
        positive = Passage(passage.text, passage.title, passage.id, teacher_score=score)
        other = found[(number + 7) % len(found)]
        negative = Passage(other.text, other.title, other.id, teacher_score=None if score is None else -score)
        question = " ".join(rng.sample(words, 4))
        made.append(TrainingSample(question, (positive,), (negative,), answers=(" ".join(words[7:9]),)))
    return made


def write_corpus(here: Workplace, path: Path) -> None:
    if path.suffix == ".tsv":
        write_passages(path, passages(here))
        return
    with path.open("w") as file:
        for passage in passages(here):
            record = {"_id": passage.id, "title": passage.title, "text": passage.text}
            record |= {"url": f"http://here/{passage.id}", "year": 1900 + int(passage.id)}
            file.write(json.dumps(record) + "\n")


def write_train(here: Workplace, path: Path) -> None:
    write_training_set(path, samples(here)[: here.few if path.suffix == ".json" else here.rows])


def first_samples(count: int) -> Callable[[Workplace, Path], None]:
    return lambda here, path: write_training_set(path, samples(here)[:count])


def write_scored(here: Workplace, path: Path) -> None:
    write_training_set(path, samples(here, score=2.0))


def write_question_file(here: Workplace, path: Path) -> None:
    if path.suffix == ".csv":
        write_csv_questions(path, questions(here))
    else:
        write_questions(path, questions(here))


def write_judgements(here: Workplace, path: Path) -> None:
    write_qrels(path, judgements(here))


def write_run(here: Workplace, path: Path) -> None:
    lines = (
        f"{question} Q0 {passage} 1 1.0 other\n"
        for question, found in judgements(here).items()
        for passage in found
    )
    path.write_text("".join(lines))


def write_pairs(here: Workplace, path: Path) -> None:
    rows = [
        f"{question.text}\t{passage.text}"
        for question, passage in zip(questions(here), passages(here)[1:], strict=False)
    ]
    path.write_text("\n".join(rows * 2) + "\n")


def write_faq_table(here: Workplace, path: Path) -> None:
    rows = [
        f"{sample.question},{sample.positives[0].text},{sample.hard_negatives[0].text}"
        for sample in samples(here)
    ]
    path.write_text("\n".join(["question,answer,wrong", *rows]) + "\n")


def write_squad(here: Workplace, path: Path) -> None:
    paragraphs = []
    for question, passage in zip(questions(here, count=40), passages(here)[1:], strict=False):
        answer = {"text": question.answers[0], "answer_start": 0}
        asked = {"id": question.id, "question": question.text, "answers": [answer]}
        paragraphs.append({"context": passage.text, "qas": [asked]})
    path.write_text(json.dumps({"data": [{"title": "An article", "paragraphs": paragraphs}]}))


def write_triples(here: Workplace, path: Path) -> None:
    """Ids alone; the files of texts are beside it."""
    path.write_text(
        "".join(f"{question}\t{int(question) + 2}\t{int(question) + 5}\n" for question in judgements(here))
    )
    texts = [f"{passage.id}\t{passage.text}\n" for passage in passages(here)]
    (path.parent / "collection.tsv").write_text("".join(texts))
    asked = [f"{question.id}\t{question.text}\n" for question in questions(here)]
    (path.parent / "queries.train.tsv").write_text("".join(asked))


def make_beir(here: Workplace, folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    write_corpus(here, folder / "corpus.jsonl")
    write_questions(folder / "queries.jsonl", questions(here))
    for split in ("train", "dev", "test"):
        write_qrels(folder / "qrels" / f"{split}.tsv", judgements(here))


def make_folder_of_data(here: Workplace, folder: Path) -> None:
    folder.mkdir()
    write_train(here, folder / "a.json")


def make_folder_of_beir(here: Workplace, folder: Path) -> None:
    make_beir(here, folder / "scifact")


def make_documents(here: Workplace, folder: Path) -> None:
    """Where that takes long, too few to train on: BM25 searches them."""
    rng = random.Random(5)
    folder.mkdir(parents=True)
    for number in range(1 if here.is_quick else 6):
        sections = [
            f"## {sentence(rng, 4)}\n\n" + " ".join(f"{sentence(rng, 9).capitalize()}." for _ in range(3))
            for _ in range(12)
        ]
        text = "\n\n".join(
            [f"# {sentence(rng, 4)}", "Answers to your question about the quick lazy fox.", *sections]
        )
        (folder / f"page{number}.md").write_text(text)


def make_settings(here: Workplace, folder: Path) -> None:
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "mine.yaml").write_text(
        "defaults: [biencoder_default, _self_]\nnum_train_epochs: 2\n"
    )


def make_bert(here: Workplace, folder: Path, *, hidden_size: int = 48) -> None:
    """One layer, with the letters next to the words of the texts, so that everything can be read."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = [*VOCABULARY, *letters, *(f"##{letter}" for letter in letters), *".,:;!()"]
    encoder_folder(
        folder,
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=512,
    )
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    base_folder(folder)


def make_decoder(here: Workplace, folder: Path) -> None:
    decoder_folder(folder, "qwen3 embedding", max_position_embeddings=512)
    base_folder(folder, "qwen3")


def make_published(here: Workplace, folder: Path) -> None:
    publish(folder, f"{folder.parent.name}/{folder.name}")


def make_modernbert(here: Workplace, folder: Path) -> None:
    write_backbone(folder, "ModernBert", bytes_in_brackets(512), MODERN)


def make_jina(here: Workplace, folder: Path) -> None:
    write_backbone(folder, "JinaEmbeddingsV3", sentence_pieces(512), ROBERTA)


def make_sentence_transformer(here: Workplace, folder: Path) -> None:
    make_bert(here, folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')


def make_teacher(here: Workplace, folder: Path) -> None:
    """A model of this toolkit, of the width and the scaling that docs/static_encoders.md wants."""
    make_bert(here, here.folder / "teacher-bert", hidden_size=384)
    settings = EncoderSettings(
        sequence_length=256, shared=True, pooling="mean", normalize=True, plain_apostrophes=False
    )
    BiEncoder.from_pretrained(str(here.folder / "teacher-bert"), settings).save(folder)


def make_cross_encoder(here: Workplace, folder: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

    make_bert(here, folder, hidden_size=16)
    config = BertConfig.from_pretrained(folder, num_labels=1, initializer_range=0.6)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def make_question_writer(here: Workplace, folder: Path) -> None:
    make_bert(here, folder)
    question_writer(folder)


def write_vocabulary(here: Workplace, path: Path) -> None:
    make_bert(here, path.parent / "vocabulary-of")
    (path.parent / "vocabulary-of" / "vocab.txt").rename(path)


def write_checkpoint_of_dpr(here: Workplace, path: Path) -> None:
    settings = EncoderSettings(sequence_length=256)
    model = BiEncoder.from_pretrained(str(here.folder / "models" / "bert-base-uncased"), settings)
    write_original(
        path, original_names(model.weights()), flat_params("bert-base-uncased", sequence_length=256)
    )


def write_vectors_of_dpr(here: Workplace, pattern: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = [(f"wiki:{passage.id}", rng.random(48, dtype=np.float32)) for passage in passages(here)]
    pattern.with_name("wiki_passages_0").write_bytes(pickle.dumps(vectors))


def write_vectors_as_lines(here: Workplace, path: Path) -> None:
    lines = [json.dumps({"id": passage.id, "vector": [0.5, 0.25]}) for passage in passages(here)]
    path.write_text("\n".join(lines) + "\n")


FILES = {
    "nq_train": "downloads/data/retriever/nq-train.json",
    "nq_dev": "downloads/data/retriever/nq-dev.json",
    "nq_test": "downloads/data/retriever/qas/nq-test.csv",
    "dpr_wiki": "downloads/data/wikipedia_split/psgs_w100.tsv",
    "runs/first": "runs/first/run.json",
}
"""Where what a name stands for lies: names of conf/, and a run, whose folder may hold other files before it."""
TRAIN = (
    "dpr train encoder.pretrained_model_cfg=bert-base-uncased train_datasets=train.json dev_datasets=dev.json"
)
LEARNS = (
    "encoder.shared=true encoder.pooling=mean encoder.normalize=true loss.temperature=0.05 train.learning_rate=5e-3"
    " train.num_train_epochs=40"
)
SEARCHED = (
    "dpr embed model=runs/first corpus=CORPUS out=runs/first/vectors && dpr retrieve model=runs/first"
    " corpus=CORPUS vectors=runs/first/vectors_0 questions=questions.csv search_folder=runs/first"
)
GIVEN: dict[str, Callable[[Workplace, Path], None] | str] = {
    # Data.
    **dict.fromkeys(["train.json", "train.jsonl", "a.json", "b.json"], write_train),
    **dict.fromkeys(["nq_train", "nq_train.jsonl"], first_samples(36)),  # for forty epochs
    **dict.fromkeys(["web.jsonl", "faq.jsonl", "extra.jsonl"], write_train),
    **dict.fromkeys(["dev.json", "dev.jsonl", "nq_dev", "nq_dev.json"], first_samples(16)),
    "my data": make_folder_of_data,
    "scored.json": write_scored,
    **dict.fromkeys(["train.tsv", "test.tsv", "faq.tsv"], write_pairs),
    "faq.csv": write_faq_table,
    "squad/train-v1.1.json": write_squad,
    "qidpidtriples.train.full.tsv": write_triples,
    **dict.fromkeys(["corpus.tsv", "corpus.jsonl", "dpr_wiki", "psgs_w100.tsv"], write_corpus),
    **dict.fromkeys(["questions.csv", "questions.jsonl", "queries.jsonl", "nq_test"], write_question_file),
    **dict.fromkeys(["dev_questions.jsonl", "test_questions.jsonl"], write_question_file),
    **dict.fromkeys(["qrels.tsv", "qrels/test.tsv", "dev_qrels.tsv", "test_qrels.tsv"], write_judgements),
    **dict.fromkeys(["scifact", "data/scifact", "data/dev", "FOLDER"], make_beir),
    "data/beir": make_folder_of_beir,
    "other.run": write_run,
    **dict.fromkeys(["path/to/folder", "docs"], make_documents),
    "my_conf": make_settings,
    # Models.
    "models/bert-base-uncased": make_bert,
    **dict.fromkeys(FOLDERS, make_published),
    "answerdotai/ModernBERT-base": make_modernbert,
    "jinaai/jina-embeddings-v3-hf": make_jina,
    "Qwen/Qwen3-Embedding-4B": make_decoder,
    **dict.fromkeys(
        ["all-MiniLM-L6-v2", "models/minilm", "models/e5", "e5-st", "strong"], make_sentence_transformer
    ),
    **dict.fromkeys(["ms-marco-cross-encoder", "models/cross-encoder"], make_cross_encoder),
    "models/teacher": make_teacher,
    "models/doc2query-t5": make_question_writer,
    "my_static": "dpr new-encoder corpus=corpus.tsv out=my_static layers=0 hidden=32 tokenizer=models/teacher/encoder",
    "vocab.txt": write_vocabulary,
    "hf_bert_base.cp": write_checkpoint_of_dpr,
    "wiki_passages_*": write_vectors_of_dpr,
    "out.jsonl": write_vectors_as_lines,
    # Runs that are there already.
    "models/base": f"{TRAIN} train.learning_rate=0 train.max_steps=1 out=models/base",
    **{f"runs/{name}": f"{TRAIN} out=runs/{name}" for name in ("large", "nq", "whole")},
    "runs/mine": f"{TRAIN} {LEARNS} out=runs/mine",
    "runs/docs": "dpr adapt corpus.jsonl out=runs/docs",
    "runs/first": f"{TRAIN} out=runs/first && {SEARCHED}",
    "runs/first/dpr_biencoder.step800": "cp -r runs/first/dpr_biencoder.step2 runs/first/dpr_biencoder.step800",
    "runs/first/dpr_biencoder.step1000": "cp -r runs/first/dpr_biencoder.step3 runs/first/dpr_biencoder.step1000",
    "runs/second/suite": "dpr evaluate set=data/beir model_file=runs/first output_dir=runs/second/suite",
}
"""Made by a function or by commands, which are given what they read in the same way."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "page" in metafunc.fixturenames:
        pages = PAGES if metafunc.config.getoption("--all-docs") else [README]
        metafunc.parametrize("page", pages, ids=[page.name for page in pages])


def test_it_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPR_CACHE", str(folder / "cache"))
    failed = []
    with warm_dpr(tmp_path / "bin") as programs:
        is_quick = not request.config.getoption("--all-docs")
        here = Workplace(folder, programs, page.read_text(encoding="utf-8"), is_quick=is_quick)
        for step in steps(page):
            if is_left_out(step, is_quick=is_quick):
                continue
            began = time.monotonic()
            fault = ""
            try:
                here.give(step.code)
                if step.is_python:
                    here.python(step)
                else:
                    here.command(step)
            except Exception as error:
                fault = f"{error!r}" if step.is_python else f"{error}"
                failed.append(f"{step.where}: {step.code}\n{fault}")
            print(
                f"{time.monotonic() - began:6.1f} s  {step.where}: {step.code[:90]!r}{fault and chr(10)}{fault}"
            )
    assert not failed, "\n\n".join(failed)


def test_nothing_is_left_out_or_replaced_that_no_page_has() -> None:
    codes = [step.code for page in PAGES for step in steps(page)]
    assert len(codes) > 100
    for pattern in (*LEFT_OUT, *PACKAGES, *INSTEAD):
        assert any(re.search(pattern, code) for code in codes), pattern


def test_a_step_is_what_a_reader_types(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text, `dpr doctor`.\n\n    dpr embed model=a \\\n      out=b\n    A=1 bash c.sh\n\n    what is printed\n\n"
        "    for n in 1 2; do\n      dpr search $n\n    done\n\n```python\nimport dpr\n\nprint(dpr)\n```\n"
    )
    assert [(step.code, step.is_python) for step in steps(page)] == [
        ("dpr embed model=a out=b", False),
        ("A=1 bash c.sh", False),
        ("for n in 1 2; do\n  dpr search $n\ndone", False),
        ("import dpr\n\nprint(dpr)", True),
    ]
