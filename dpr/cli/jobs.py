"""The commands that Hydra composes: each is a configuration file, the root of its settings, and the module whose ``run`` does the job."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from dpr.cli.launch import launch


def _command(config_name: str, root: str, job: str) -> Callable[[list[str]], int]:
    """Imports the settings when the command is called, and the job once the settings are checked, so that a mistake is reported at once."""

    def main(argv: list[str]) -> int:
        module, _, name = root.partition(":")
        config_class = getattr(importlib.import_module(module), name)
        return launch(config_name, config_class, lambda config: importlib.import_module(job).run(config), argv)

    return main


train = _command("biencoder_train_cfg", "dpr.training.command_settings:BiEncoderTrainConfig", "dpr.jobs.train")
explain = _command("explain", "dpr.training.command_settings:ExplainConfig", "dpr.jobs.explain")
ladder = _command("ladder", "dpr.ladder.settings:LadderConfig", "dpr.ladder.rounds")
embed = _command("gen_embs", "dpr.embedding.settings:EmbedConfig", "dpr.jobs.embed")
retrieve = _command("dense_retriever", "dpr.retrieval.settings:RetrievalConfig", "dpr.jobs.retrieve")
tune_index = _command("tune_index", "dpr.retrieval.tuning_settings:TuneIndexConfig", "dpr.jobs.tune_index")
evaluate = _command("evaluate", "dpr.retrieval.suite_settings:EvaluateConfig", "dpr.jobs.evaluate")
export = _command("export", "dpr.export.settings:ExportConfig", "dpr.jobs.export")
push = _command("push", "dpr.export.settings:PushConfig", "dpr.jobs.push")
_download = _command("download", "dpr.preparation.settings:DownloadConfig", "dpr.jobs.download")


def download(argv: list[str]) -> int:
    """``dpr download KEY ...`` is short for ``dpr download resource=[KEY,...]``."""
    keys: list[str] = []
    rest: list[str] = []
    for before, token in zip(["", *argv], argv, strict=False):
        is_key = "=" not in token and not token.startswith("-") and not before.startswith(("-c", "--config"))
        (keys if is_key else rest).append(token)
    return _download([*rest, *([f"resource=[{','.join(keys)}]"] if keys else [])])
