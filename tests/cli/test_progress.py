"""What can take long says how far it is, on standard error, in every command."""

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

import pytest

from dpr.cli.main import main
from dpr.core import logs
from tests.cli.test_adapt import write_documents

COMMANDS = {
    "prepare": "docs out=texts",
    "new-encoder": "corpus=texts/corpus.jsonl out=encoder layers=0 hidden=16",
    "check-data": "texts/train.jsonl",
    "prepare pairs": "texts/corpus.jsonl pairs=mixed out=pairs rounds=1",
    "mine": "texts/train.jsonl corpus=texts/corpus.jsonl out=mined.jsonl processes=1",
    "train": "train_datasets=mined.jsonl dev_datasets=texts/dev.jsonl out=run encoder.pretrained_model_cfg=encoder"
    " encoder.pooling=mean device=cpu train.max_steps=2 train.batch_size=4 train.dev_batch_size=4 val_av_rank_start_epoch=0"
    " train.validation=[{kind:retrieval,corpus:texts/corpus.jsonl,questions:texts/dev_questions.jsonl,"
    "qrels:texts/dev_qrels.tsv}]",
    "embed": "model=run corpus=texts/corpus.jsonl out=run/vectors device=cpu",
    "retrieve": "model=run corpus=texts/corpus.jsonl vectors=run/vectors_0 questions=texts/test_questions.jsonl"
    " qrels=texts/test_qrels.tsv metrics_file=dense.json device=cpu",
    "retrieve bm25": "corpus=texts/corpus.jsonl questions=texts/test_questions.jsonl qrels=texts/test_qrels.tsv"
    " indexer=bm25 metrics_file=bm25.json",
    "retrieve faiss": "model=run corpus=texts/corpus.jsonl vectors=run/vectors_0 device=cpu"
    " questions=texts/test_questions.jsonl indexer=ivf out=faiss.json",
    "compare": "dense.json bm25.json",
    "verify": "run/vectors_0",
}
EXPECTED = {
    "prepare": [
        "reading documents: 6 of 6 files",
        "splitting texts into words: ",
        "looking for near-duplicates: ",
    ],
    "new-encoder": ["reading corpus.jsonl: 1 of 1 MB"],
    "check-data": ["reading train.jsonl: "],
    "prepare pairs": ["cutting questions: ", "writing the corpus: ", "cutting pairs: "],
    "mine": ["looking for the positives: ", "splitting passages into words: ", "mining: "],
    "train": [
        "reading mined.jsonl: ",
        "encoding dev: ",
        "ranking dev: ",
        "encoding and searching dev_questions: ",
    ],
    "embed": ["reading corpus.jsonl: ", "embedding: "],
    "retrieve": ["encoding questions: ", "reading vectors: ", "reading corpus.jsonl: "],
    "retrieve bm25": ["splitting passages into words: ", "searching by words: "],
    "retrieve faiss": ["reading vectors: ", "searching: "],
    "compare": ["randomisation test: 100,000 of 100,000 random signs"],
    "verify": ["reading ids-00000.npy: "],
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str]]]:
    """What each command has said on standard output and standard error, each line of progress as soon as it could."""
    folder = tmp_path_factory.mktemp("progress")
    write_documents(folder / "docs")
    (folder / "docs" / "broken.txt").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DPR_CACHE", str(folder / "cache"))
        patch.setattr(logs, "_FIRST_LINES_EVERY_S", 0.0)
        patch.setattr(logs, "_LINES_EVERY_S", 0.0)
        found = {}
        for name, words in COMMANDS.items():
            out, errors = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(errors):
                code = main([name.split()[0], *words.split()])
            assert code == 0 or name == "check-data", (name, errors.getvalue())
            found[name] = out.getvalue(), errors.getvalue()
        yield found


@pytest.mark.parametrize("command", COMMANDS)
def test_what_can_take_long_says_how_far_it_is(said: dict[str, tuple[str, str]], command: str) -> None:
    out, errors = said[command]
    for line in EXPECTED[command]:
        assert f" I {line}" in errors, errors
        assert line not in out
