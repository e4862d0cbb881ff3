"""``dpr check-data``: are these training data good to train on?"""

from __future__ import annotations

import shlex
from pathlib import Path

from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.formats.text_input import expand_files
from dpr.formats.training_sets import open_training_set
from dpr.jobs.mine import dense_search
from dpr.mining.search import LexicalSearch
from dpr.mining.suspects import find_suspects
from dpr.preparation.conversion import read_options
from dpr.preparation.data_check import check_files, open_tokenizer, report, require_rows
from dpr.preparation.settings import CheckDataSettings

_MOST_SUSPECTS = 200


def run(config: CheckDataSettings) -> int:
    """Prints the report; returns the exit code."""
    tensorizer = None
    prefixes = {"question": config.query_prefix, "passage": config.passage_prefix}
    if config.tokenizer:
        tensorizer = open_tokenizer(config.tokenizer, sequence_length=config.sequence_length)
        text = tensorizer.text
        for side, key, prompt in (
            ("question", "query_prefix", text.query_prompt),
            ("passage", "passage_prefix", text.passage_prompt),
        ):
            prefixes[side] = text.agreed_prefix(prefixes[side], prompt, key=key) or ""
    sets = {}
    for name, files in (("train", config.files), ("dev", config.dev)):
        if files:
            sets[name] = check_files(expand_files(files), read_options(config))
    lines, problems = report(sets, tensorizer, prefixes)
    print("\n".join(lines))
    require_rows(sets["train"], "train")
    if not config.tokenizer:
        print("\nlengths are in words; encoder.pretrained_model_cfg=NAME or model_file=FOLDER counts tokens")
    if config.suspects:
        _list_suspects(config, Path(config.suspects))
    return 3 if config.strict and problems else 0


def _list_suspects(config: CheckDataSettings, out: Path) -> None:
    """Writes the list, and says what to do with it."""
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
    positives = counts["positives in doubt"]
    negatives = counts["negatives in doubt"]
    print(
        f"\nlabels of {counts['questions']:,} questions that BM25 and {config.tokenizer} both contradict:"
        f" {positives:,} positives, {negatives:,} hard negatives; the most doubtful are in {out}"
    )
    command = shlex.join(["dpr", "prepare", *config.files, "out=FILE", f"suspects={out}"])
    print(f"Delete the lines that are right, then {command} (relabel=true)")
