"""``dpr check-data``: a report on whether training data are fit for training."""

from __future__ import annotations

import shlex
from pathlib import Path

from dpr.formats.text_input import expand_files
from dpr.formats.training_sets import open_training_set
from dpr.mining.blocks import run_job
from dpr.mining.search import LexicalSearch, dense_search
from dpr.mining.suspects import Doubts
from dpr.preparation.conversion import read_options
from dpr.preparation.data_check import check_files, open_tokenizer, report
from dpr.preparation.settings import CheckDataSettings


def run(config: CheckDataSettings) -> int:
    """Prints the report, writes the list of suspects, and returns the exit code."""
    tensorizer = None
    if config.tokenizer:
        tensorizer = open_tokenizer(config.tokenizer, sequence_length=config.sequence_length)
    sets = {}
    for name, files in (("train", config.files), ("dev", config.dev)):
        if files:
            sets[name] = check_files(expand_files(files), read_options(config))
    lines, problems = report(sets, tensorizer)
    print("\n".join(lines))
    if not config.tokenizer:
        print("\nlengths are in words; encoder.pretrained_model_cfg=NAME or model_file=FOLDER counts tokens")
    if config.suspects:
        out = Path(config.suspects)
        train = open_training_set(
            expand_files(config.files), name="train", split=config.split, columns=config.columns()
        )
        searches = [dense_search(config.tokenizer, config), LexicalSearch()]
        counts = run_job(Doubts(train, out, searches), overwrite=config.overwrite)["counts"]
        print(
            f"\nlabels of {counts['questions']:,} questions that BM25 and {config.tokenizer} both contradict:"
            f" {counts['positives in doubt']:,} positives, {counts['negatives in doubt']:,} hard negatives;"
            f" the most doubtful are in {out}"
        )
        command = shlex.join(["dpr", "prepare", *config.files, "out=FILE", f"suspects={out}"])
        print(f"Delete the lines whose labels are right; {command} then drops the labels of the others")
    return 3 if config.strict and problems else 0
