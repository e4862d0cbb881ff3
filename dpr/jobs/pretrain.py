"""``dpr pretrain``: an encoder learns from text alone, by the trainer of ``dpr train``; what is left is an encoder folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpr.core.distributed import current_ranks, on_main, process_group, resolve_device
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.core.seeding import seed_everything
from dpr.data.pairs import WHOLE
from dpr.data.training_data import OpenedSets
from dpr.export.tower_files import Side, write_tower
from dpr.formats.token_frequencies import TokenFrequencies
from dpr.jobs.export_best import check_formats, check_model, export_best
from dpr.jobs.sources import NamedSource, resolve_training_files
from dpr.jobs.train import build_model, build_trainer, open_pairs, open_sets, train_or_measure
from dpr.models.biencoder import BiEncoder
from dpr.models.pretraining import PretrainingHeads
from dpr.models.trials import is_static
from dpr.storage.durable import durable_folder, read_manifest, remove_folder
from dpr.storage.outputs import output, require_writable
from dpr.training.callbacks.pool_metrics import PoolMetrics
from dpr.training.command_settings import PretrainConfig
from dpr.training.pretraining import Pretraining, PretrainingLoss
from dpr.training.user_classes import make_loss
from dpr.training.usual import Named

logger = get_logger(__name__)

ENCODER = "encoder"


def run(config: PretrainConfig) -> None:
    """Pre-trains, and writes ``<output_dir>/encoder``, which ``encoder.pretrained_model_cfg`` takes."""
    sources = resolve_training_files(config.train_datasets, config.datasets)
    dev_sources = resolve_training_files(config.dev_datasets, config.datasets)
    folder = Path(str(config.output_dir))
    check_formats(config.train.export)
    device = resolve_device(config.device_or_cpu, local_rank=launched("LOCAL_RANK"))
    with process_group(device.type, timeout_s=config.rank_timeout_s):
        on_main(lambda: require_writable(folder, folder=True))
        named = Named.of(config)
        named.check_metric_names(config, [source.name for source in dev_sources])
        seed_everything(config.seed)
        model = build_model(config)
        heads = add_heads(model, config)
        check_model(config.train.export, model.to(device))
        of_pairs = make_loss(config.loss, candidates=config.candidates(), model=model, namespaces=[source.name for source in sources])
        own = config.pretrain
        loss = PretrainingLoss(heads, of_pairs, weight=own.pairs_weight, num_pools=config.train.gradient_accumulation_steps)
        train_sets = open_texts(sources, config)
        dev_sets = open_sets(dev_sources, config)
        logged = Pretraining(heads, config.seed, has_pairs=own.pairs_weight > 0)
        trainer = build_trainer(config, model, train_sets, dev_sets, loss=loss, named=named, callbacks=[logged])
        trainer.plan.dataset.collator.joins_equal = False  # a text is masked, and counts, as often as the pool has it
        if not (own.pairs_weight or own.decoder_masked):  # nothing trains the vectors, so none is said to collapse
            trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, PoolMetrics)]
        train_or_measure(trainer)
        is_main = current_ranks().is_main
    if is_main and not config.train.dry_run:
        write_encoder(folder, Path(config.encoder.pretrained_model_cfg))
        export_best(config)


def add_heads(model: BiEncoder, config: PretrainConfig) -> PretrainingHeads:
    """Gives the tower of a model its heads.

    Raises:
        ConfigError: it cannot be pre-trained.
    """
    tower, own = model.question_model, config.pretrain
    if is_static(tower.backbone):
        reason = "a static encoder has no layers to guess words with; dpr adapt trains one on text alone"
        raise ConfigError(f"encoder.pretrained_model_cfg={config.encoder.pretrained_model_cfg}: {reason}")
    tower.heads = PretrainingHeads(tower, model.tensorizer.tokenizer, share=own.masked, decoder_share=own.decoder_masked)
    return tower.heads


def open_texts(sources: Sequence[NamedSource], config: PretrainConfig) -> OpenedSets:
    """The corpora as pairs that are cut from them, or as whole texts."""
    opened: OpenedSets = []
    for source in sources:
        options = source.options
        if options.reader is not None:
            raise ConfigError(f"datasets.{source.name}.reader: pre-training reads corpora alone; leave it out")
        kinds = (options.pairs or config.pretrain.pairs) if config.pretrain.pairs_weight else WHOLE
        pairs = open_pairs(replace(source, options=replace(options, pairs=kinds)))
        opened.append((pairs, replace(options, file=None, source=None)))
    return opened


def write_encoder(run: Path, start: Path) -> None:
    """The best checkpoint's (without validations the last one's) tower as a Hugging Face folder; what an earlier end of the run wrote there
    is replaced. Token frequencies come from the encoder folder that it started from."""
    model, target = BiEncoder.load(run), run / ENCODER
    if model.settings.residual_words:  # no backbone of transformers adds them
        logger.info("train with model_file=%s: encoder.residual_words=true has no encoder folder", run)
        return
    made_of = {"model": model.fingerprint}
    if target.is_dir() and read_manifest(target)["metadata"].get("made_of") != made_of:
        remove_folder(target)
    with output(target, made_of, overwrite=None) as is_missing:
        if not is_missing:
            return
        with durable_folder(target, metadata={"kind": "pre-trained encoder", "made_of": made_of}) as folder:
            write_tower(model, Side("", model.question_model, model.settings.sequence_length, plain_apostrophes=False), folder)
            if frequencies := TokenFrequencies.read(start, vocab_size=int(model.question_model.config.vocab_size)):
                frequencies.write(folder)
    logger.info("%s written; train with encoder.pretrained_model_cfg=%s, or with model_file=%s", target, target, run)
