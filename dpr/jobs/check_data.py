"""``dpr check-data``: are these training data good to train on?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import ClassVar

from dpr.core.errors import ConfigError
from dpr.core.settings import require_set, setting
from dpr.preparation.settings import ReadSettings, SuspectSettings

_MOST_SUSPECTS = 200
_SHOWN, _WIDTH = 5, 110


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
        if self.suspects and (
            key := next(
                (key for key in ("corpus", "queries", "min_grade") if getattr(self, key) is not None), None
            )
        ):
            raise ConfigError(
                f"suspects and {key} are mutually exclusive; make a file of these data with dpr prepare first"
            )


def run(config: CheckDataSettings) -> int:
    """Prints the report; returns the exit code."""
    from dpr.formats.text_input import expand_files
    from dpr.jobs.prepare import read_options
    from dpr.preparation.data_check import check_files
    from dpr.preparation.data_report import open_tokenizer, report, require_rows
    from dpr.preparation.retrieval_check import RetrievalCheck

    tensorizer, prefixes = None, {"question": config.query_prefix, "passage": config.passage_prefix}
    if config.tokenizer:
        tensorizer = open_tokenizer(
            config.tokenizer, sequence_length=config.sequence_length, question_length=config.question_length
        )
        for side, key, prompt in (
            ("question", "query_prefix", tensorizer.text.query_prompt),
            ("passage", "passage_prefix", tensorizer.text.passage_prompt),
        ):
            prefixes[side] = tensorizer.text.agreed_prefix(prefixes[side], prompt, key=key) or ""
    given = {"train": config.files, "dev": config.dev}
    sets = {
        name: check_files(expand_files(files), read_options(config)) for name, files in given.items() if files
    }
    corpus, questions, qrels = (
        Path(name) if name else None for name in (config.corpus, config.questions, config.qrels)
    )
    retrieval = RetrievalCheck(corpus, questions, qrels) if corpus or questions else None
    lines, problems = report(sets, retrieval, tensorizer, prefixes)
    print("\n".join(lines))
    if "train" in sets:
        require_rows(sets["train"], "train")
    if not config.tokenizer:
        print("\nlengths are in words; encoder.pretrained_model_cfg=NAME or model_file=FOLDER counts tokens")
    if config.suspects:
        _list_suspects(config, Path(config.suspects))
    return 3 if config.strict and problems else 0


def _list_suspects(config: CheckDataSettings, out: Path) -> None:
    """Writes the list and shows its beginning."""
    from dpr.core.compute_settings import ForwardSettings
    from dpr.formats.json_records import iter_json_objects
    from dpr.formats.text_input import expand_files
    from dpr.formats.training_sets import open_training_set
    from dpr.jobs.mine import dense_search, lexical_search
    from dpr.mining.settings import ModelSearchSettings
    from dpr.mining.suspects import find_suspects

    how = vars(config.part(ForwardSettings)) | {
        "query_prefix": config.query_prefix,
        "passage_prefix": config.passage_prefix,
    }
    model = dense_search(ModelSearchSettings(model_file=config.tokenizer, **how))
    train = open_training_set(
        expand_files(config.files), name="train", split=config.split, columns=config.columns()
    )
    counts = find_suspects(
        train, out, [model, lexical_search()], most=_MOST_SUSPECTS, overwrite=config.overwrite
    )
    print(
        f"\nlabels of {counts['questions']:,} questions that BM25 and {config.tokenizer} both contradict: ",
        end="",
    )
    print(
        f"{counts['positives in doubt']:,} positives, {counts['negatives in doubt']:,} hard negatives; the"
        f" most doubtful are in {out}"
    )
    for _, record in islice(iter_json_objects(out), _SHOWN):
        print(
            f"  {record['doubt']:.2f}  {_short(record['question'])}\n        {record['label']}:"
            f" {_short(record['passage']['text'])}"
        )
        if "instead" in record:
            print(f"        found:    {_short(record['instead']['text'])}")
    command = shlex.join(["dpr", "prepare", *config.files, "out=FILE", f"suspects={out}"])
    print(f"Delete the lines that are right, then {command} (relabel=true)")


def _short(text: str) -> str:
    return shorten(text, _WIDTH, placeholder=" ...")
