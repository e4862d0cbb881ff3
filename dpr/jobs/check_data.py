"""``dpr check-data``: are these training data good to train on?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpr.core.settings import require_set, setting
from dpr.preparation.settings import ReadSettings


@dataclass
class CheckDataSettings(ReadSettings):
    """Counts, lengths, repeats, contradictions and overlap of training data, and five records as the model will see them.

    Ends with 0, or with strict=true and a problem with 3. Any format that dpr prepare knows."""

    EXAMPLES: ClassVar[str] = """\
dpr check-data train.jsonl
dpr check-data train.jsonl dev=dev.jsonl encoder.pretrained_model_cfg=bert-base-uncased encoder.sequence_length=256 --strict
"""
    files: list[str] = setting(list, operand="FILE ...")
    """Training files, folders or patterns; together one data set."""
    dev: list[str] = setting(list, also=("dev_datasets",))
    """Validation data, for the overlap; again for more."""
    tokenizer: str = setting("", also=("encoder.pretrained_model_cfg", "model_file"))
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
        require_set(self, {"files": "train.jsonl"})


def run(config: CheckDataSettings) -> int:
    """Prints the report; returns the exit code."""
    from dpr.formats.text_input import expand_files
    from dpr.jobs.prepare import read_options
    from dpr.preparation.data_check import check_files
    from dpr.preparation.data_report import open_tokenizer, report, require_rows

    tensorizer, prefixes = None, {"question": config.query_prefix, "passage": config.passage_prefix}
    if config.tokenizer:
        tensorizer = open_tokenizer(config.tokenizer, sequence_length=config.sequence_length, question_length=config.question_length)
        for side, key, prompt in (
            ("question", "query_prefix", tensorizer.text.query_prompt),
            ("passage", "passage_prefix", tensorizer.text.passage_prompt),
        ):
            prefixes[side] = tensorizer.text.agreed_prefix(prefixes[side], prompt, key=key) or ""
    train = check_files(expand_files(config.files), read_options(config))
    dev = check_files(expand_files(config.dev), read_options(config)) if config.dev else None
    lines, problems = report(train, dev, tensorizer, prefixes)
    print("\n".join(lines))
    require_rows(train, "train")
    if not config.tokenizer:
        print("\nlengths are in words; encoder.pretrained_model_cfg=NAME or model_file=FOLDER counts tokens")
    return 3 if config.strict and problems else 0
