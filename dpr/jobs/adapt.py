"""``dpr adapt CORPUS``: a retriever that can be searched, from passages without questions, with one command.

It runs other commands one after another, as the stages of one folder (``dpr/adaptation/stages.py``).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpr.adaptation.choices import AdaptTexts, find_model, will_fit
from dpr.adaptation.encoder_stages import make_searchable
from dpr.adaptation.label_split import split_labels
from dpr.adaptation.labelled_stages import adapt_to_labels
from dpr.adaptation.settings import AdaptSettings
from dpr.adaptation.stages import stages_in
from dpr.core.errors import ConfigError
from dpr.core.logs import duration
from dpr.data.pairs import kinds_of
from dpr.jobs import embed, merge, prepare, retrieve, train
from dpr.preparation.pseudo_questions import HELD_BACK
from dpr.preparation.settings import PrepareSettings
from dpr.storage.checksums import content_sha256

STAGE_JOBS: dict[str, Callable[[Any], Any]] = {
    "prepare": prepare.run,
    "new-encoder": prepare.make_encoder,
    "train": train.run,
    "embed": embed.run,
    "merge": merge.run,
    "retrieve": retrieve.run,
}
"""Commands that stages run, by name; those of ``dpr quickstart`` too."""


def run(config: AdaptSettings) -> None:
    """Runs all stages and prints their results."""
    kinds_of(config.pairs, setting="pairs")
    out = Path(str(config.out))
    config.model_file, content = find_model("model_file", config.model_file, out)
    wanted = f"static={config.static}" if config.static is not None else f"train={config.train}"
    if (config.static is not None or config.train is not None) and not will_fit(config):
        raise ConfigError(
            f"{wanted}, but model_file={config.model_file} does not state how a text becomes a"
            f" vector; use a checkpoint, or a model of sentence-transformers"
        )
    start = time.monotonic()
    corpus = Path(str(config.corpus))
    # All stages are rerun if any of these changes.
    made_of = {
        "corpus": content_sha256(corpus),
        "model_file": content,
        "static": config.static,
        "pairs": config.pairs,
        "max_pairs": config.max_pairs,
        "seed": config.seed,
    }
    made_of |= {split: content_sha256(Path(file)) for split, file in config.label_files().items()}
    train_sets = {"corpus": {"file": str(corpus), "pairs": config.pairs, "held_back": HELD_BACK}}
    prepared = out / "pseudo" / "questions"
    with stages_in(out, made_of, first=("data", "pseudo", "model"), jobs=STAGE_JOBS) as stages:
        if config.train is not None:
            splitting = "splitting the labelled questions by passage"
            stages.run("data", splitting, "adapt", config, ["texts"], part=split_labels)
            adapt_to_labels(stages, config, AdaptTexts(out / "data" / "texts", corpus, corpus, {}))
        else:
            without_questions = corpus
            if not will_fit(config):
                without_questions = prepared / "evaluation_corpus.jsonl"
                cut = PrepareSettings(sources=[str(corpus)], out=str(prepared), pairs="mixed")
                what = "generating pseudo-questions to choose the hybrid's weight"
                stages.run("pseudo", what, "prepare", cut, ["questions"])
            make_searchable(stages, config, AdaptTexts(prepared, corpus, without_questions, train_sets))

    name = shlex.quote(str(out))
    print(f"\nFinished in {duration(time.monotonic() - start)}.\n")
    print(f'Search:           dpr search {name} "your question"')
    print(f"In a browser:     dpr serve {name}")
    print(f"Measure:          dpr evaluate run={name} set=FOLDER, with your own questions and judgements")
