"""What earlier versions had: it is refused with one sentence that says what to do instead, and nothing else of it is left."""

COMMANDS = {
    "ladder": "examples/rounds.sh trains, mines and trains again; rerun it to go on (docs/recipes.md)",
    "pretrain": 'dpr train "train_datasets=[{file: corpus.jsonl, pairs: mixed}]" trains on text alone (docs/pretraining.md)',
}
SETTINGS = {
    "train.leave_out": "from Python, BiEncoderTrainer(..., callbacks=[...], usual=False) runs with those callbacks alone",
}
"""By the key, or by ``key=value`` where a choice of a setting is gone."""
