"""The stage of ``dpr adapt`` that fits a linear layer or static towers of a given model to a corpus."""

from __future__ import annotations

from pathlib import Path

from dpr.adaptation import linear_layer, static_student
from dpr.adaptation.folder import AdaptFolder
from dpr.adaptation.settings import AdaptSettings
from dpr.core.distributed import resolve_device
from dpr.data.pairs import PseudoPairs
from dpr.formats.run_folders import write_run
from dpr.models.biencoder import BiEncoder

FITTED = "fitted"
"""Checkpoint of the fitted model in the run of its stage."""


def write_fitted(config: AdaptSettings) -> None:
    """Writes a run with the given model and the layer or static towers that were fitted to the corpus."""
    folder = AdaptFolder(Path(str(config.out))).model
    model = BiEncoder.load(str(config.model_file), resolve_device(config.device))
    if config.static is not None:
        pairs = PseudoPairs(str(config.corpus), kinds=config.pairs)
        most = config.max_pairs or static_student.MOST_QUESTIONS
        model = static_student.learn_static(
            model, pairs, sides=config.static, most_questions=most, seed=config.seed
        )
    else:
        # Whole sentences and titles teach more than shortened crops, which are for an untrained model.
        kinds = ["sentence", "title"] if config.pairs == "mixed" else config.pairs
        pairs = PseudoPairs(str(config.corpus), kinds=kinds, drop_words=0.0)
        linear_layer.add_fitted_layer(
            model, pairs, most_questions=config.max_pairs or linear_layer.MOST_QUESTIONS, seed=config.seed
        )
    model.save(folder / FITTED, overwrite=True)
    write_run(folder, {"best_checkpoint": FITTED, "last_checkpoint": FITTED})
