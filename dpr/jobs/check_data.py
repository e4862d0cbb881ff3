"""``dpr check-data``: are these training data good to train on?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpr.core.errors import ConfigError
from dpr.core.settings import require_set, setting
from dpr.preparation.settings import ReadSettings, SuspectSettings

_MOST_SUSPECTS = 200


@dataclass
class CheckDataSettings(ReadSettings, SuspectSettings):
    """Counts, lengths, repeats, contradictions and overlap of training data, and five records as the model
    will see them; the same of a corpus, questions and judgements, and whether they fit together; with
    suspects= the labels that look wrong.

    Ends with 0, or with strict=true and a problem with 3. Any format that dpr prepare knows."""

    EXAMPLES: ClassVar[str] = """\
dpr check-data train.jsonl
dpr check-data train.jsonl dev=dev.jsonl encoder.pretrained_model_cfg=bert-base-uncased encoder.sequence_length=256 --strict
dpr check-data corpus=corpus.tsv questions=test.jsonl qrels=test.tsv model_file=runs/first
dpr check-data train.jsonl model_file=runs/first suspects=suspects.jsonl
"""
    files: list[str] = setting(list, operand="FILE ...", path="input")
    """Training files, folders or patterns; together one data set."""
    corpus: str | None = setting(None, also=("ctx_src", "ctx_datasets"), path="input")
    """A corpus; also the passages that rows name by id. TSV, JSON lines or Parquet."""
    questions: str | None = setting(None, also=("qa_dataset",), path="input")
    """Questions for evaluation, as dpr retrieve reads them."""
    qrels: str | None = setting(None, path="input")
    """Judgements of these questions, BEIR's TSV or TREC's four columns."""
    dev: list[str] = setting(list, also=("dev_datasets",), path="input")
    """Validation data, for the overlap; again for more."""
    tokenizer: str = setting("", also=("encoder.pretrained_model_cfg", "model_file"), path="input")
    """Model name, model folder, checkpoint or run folder whose tokenizer counts; empty = count words."""
    sequence_length: int | None = setting(None, unit="tokens", least=1, also=("encoder.sequence_length",))
    """Longest passage; absent = 256."""
    question_length: int | None = setting(None, unit="tokens", least=1, also=("encoder.question_length",))
    """Longest question; absent = as passages."""
    query_prefix: str = ""
    """Put before every question as it is, as datasets.<name>.query_prefix."""
    passage_prefix: str = ""
    """The same before every passage."""
    strict: bool = False
    """End with 3 where there is a problem."""

    def check_together(self, prefix: str) -> None:
        if self.corpus and self.corpus.startswith("["):  # as ctx_datasets is written
            self.corpus, *others = [name.strip() for name in self.corpus.strip("[]").split(",")]
            if others:
                raise ConfigError(f"{prefix}corpus names {1 + len(others)} files; check one after the other")
        if self.dev or not (self.corpus or self.questions or self.qrels):
            require_set(self, {"files": "train.jsonl"})
        if self.qrels and not (self.corpus or self.questions):
            require_set(self, {"questions": "test.jsonl"})
        if self.suspects:
            require_set(self, {"files": "train.jsonl"})
        if self.suspects and not self.tokenizer:
            raise ConfigError("suspects needs a trained bi-encoder: model_file=runs/first")
        if self.suspects and (self.corpus or self.queries or self.min_grade is not None):
            raise ConfigError(
                "suspects excludes corpus, queries and min_grade; make a file of these data with dpr prepare"
                " first"
            )


def run(config: CheckDataSettings) -> int:
    """Prints the report; returns the exit code."""
    from dpr.formats.text_input import expand_files
    from dpr.jobs.prepare import read_options
    from dpr.preparation.data_check import check_files
    from dpr.preparation.data_report import open_tokenizer, report, require_rows
    from dpr.preparation.retrieval_check import RetrievalCheck

    tensorizer = None
    before = {"question": config.query_prefix, "passage": config.passage_prefix}
    if config.tokenizer:
        tensorizer = open_tokenizer(
            config.tokenizer, sequence_length=config.sequence_length, question_length=config.question_length
        )
        text = tensorizer.text
        asked = text.agreed_prefix(before["question"], text.query_prompt, key="query_prefix")
        found = text.agreed_prefix(before["passage"], text.passage_prompt, key="passage_prefix")
        before = {"question": asked or "", "passage": found or ""}
    sets = {}
    for name, files in (("train", config.files), ("dev", config.dev)):
        if files:
            sets[name] = check_files(expand_files(files), read_options(config))
    retrieval = None
    if config.corpus or config.questions:
        retrieval = RetrievalCheck(
            None if config.corpus is None else Path(config.corpus),
            None if config.questions is None else Path(config.questions),
            None if config.qrels is None else Path(config.qrels),
        )
    lines, problems = report(sets, retrieval, tensorizer, before)
    print("\n".join(lines))
    if "train" in sets:
        require_rows(sets["train"], "train")
    if not config.tokenizer:
        print("\nlengths are in words; encoder.pretrained_model_cfg=NAME or model_file=FOLDER counts tokens")
    if config.suspects:
        _list_suspects(config, Path(config.suspects))
    return 3 if config.strict and problems else 0


def _list_suspects(config: CheckDataSettings, out: Path) -> None:
    """Writes the list, and says what to do with it."""
    from dpr.embedding.settings import CheckpointEncoderConfig
    from dpr.formats.text_input import expand_files
    from dpr.formats.training_sets import open_training_set
    from dpr.jobs.mine import dense_search
    from dpr.mining.search import LexicalSearch
    from dpr.mining.suspects import find_suspects

    prompts = CheckpointEncoderConfig(
        query_prompt=config.query_prefix or None,
        passage_prompt=config.passage_prefix or None,
        allow_other_prompts=True,  # those that differ from the model's are refused before
    )
    model = dense_search(
        str(config.tokenizer),
        encoder=prompts,
        device=config.device,
        precision=config.precision,
        batch_tokens=config.batch_tokens,
    )
    train = open_training_set(
        expand_files(config.files), name="train", split=config.split, columns=config.columns()
    )
    searches = [model, LexicalSearch()]
    counts = find_suspects(train, out, searches, most=_MOST_SUSPECTS, overwrite=config.overwrite)
    positives, negatives = counts["positives in doubt"], counts["negatives in doubt"]
    print(
        f"\nlabels of {counts['questions']:,} questions that BM25 and {config.tokenizer} both contradict:"
        f" {positives:,} positives, {negatives:,} hard negatives; the most doubtful are in {out}"
    )
    command = shlex.join(["dpr", "prepare", *config.files, "out=FILE", f"suspects={out}"])
    print(f"Delete the lines that are right, then {command} (relabel=true)")
