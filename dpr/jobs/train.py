"""``dpr train``: the one module that uses both the settings and the objects of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpr.core.distributed import current_ranks, on_main, process_group, require_ranks, resolve_device
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.core.seeding import seed_everything
from dpr.core.settings import leaves
from dpr.data.pairs import PseudoPairs
from dpr.data.training_data import OpenedSets, SampleSource
from dpr.formats.training_sets import open_training_set
from dpr.models.backbones import read_config
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.settings import (
    EncoderSettings,
    RunningSettings,
    TemperatureSettings,
    VectorSettings,
)
from dpr.storage.durable import write_json
from dpr.storage.outputs import require_writable
from dpr.training.bi_encoder_trainer import BiEncoderTrainer, default_callbacks, extensions_of
from dpr.training.callbacks import Callback
from dpr.training.callbacks.trackers import TensorBoard, WeightsAndBiases
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import NamedSource, resolve_training_files, user_data, with_token_stores
from dpr.training.dry_run import dry_run
from dpr.training.make_loss import make_loss, settle_temperature
from dpr.training.validations.dev_sets import dev_validations
from dpr.training.validations.protocol import Validation, each_once, run_validations

logger = get_logger(__name__)


def run(config: TrainCommand) -> float | None:
    """Trains, or only evaluates if there are no train_datasets. Returns the best (or the evaluated)
    validation value."""
    train_sources = resolve_training_files(config.train_datasets, config.datasets)
    dev_sources = resolve_training_files(config.dev_datasets, config.datasets)
    if config.as_dpr:
        # The original put special tokens before training questions only.
        dev_sources = [
            replace(source, options=replace(source.options, special_token=None)) for source in dev_sources
        ]
    if not train_sources and (config.model_file is None or not (dev_sources or config.train.validation)):
        raise ConfigError(
            "nothing to do: set train_datasets to train, or model_file and dev_datasets (or train.validation)"
            " to evaluate\ne.g. train_datasets=[train.json] dev_datasets=[dev.json] output_dir=runs/first"
        )
    if train_sources and config.output_dir is None:
        raise ConfigError(
            "output_dir is not set; name a folder for checkpoints and metrics, e.g. output_dir=runs/first"
        )
    require_ranks()
    device = resolve_device(config.device_or_cpu, local_rank=launched("LOCAL_RANK"))
    with process_group(device.type, timeout_s=config.rank_timeout_s):
        # Every file that settings name is checked before the model and the data are read, which may take an
        # hour.
        if output_dir := config.output_dir:
            on_main(lambda: require_writable(output_dir, folder=True))
        names = [source.name for source in dev_sources]
        callbacks, validations = extensions_of(config, names)
        seed_everything(config.seed)
        model = build_model(config).to(device)
        if not train_sources:
            settle_temperature(model, config)
            dev_sets = with_token_stores(open_sets(dev_sources, config), config, model)
            return evaluate(config, model, dev_sets, validations)
        names = [source.name for source in train_sources]
        loss = make_loss(config.loss, candidates=config.candidates(), model=model, namespaces=names)
        dev_sets = open_sets(dev_sources, config)
        train_sets = open_sets(train_sources, config, config.loss_scale_factors)
        output = Path(str(config.output_dir))
        # callbacks of the user's, and trackers, do not see a dry run
        further = [] if config.train.dry_run else [*callbacks, *make_trackers(config)]
        trainer = BiEncoderTrainer(
            model,
            train_sets,
            dev_sets,
            output_dir=output,
            settings=config,
            loss=loss,
            callbacks=default_callbacks(config.train, output, further),
            validations=validations,
            defaults=False,
        )
        if not config.train.dry_run:
            return trainer.train()
        measured = dry_run(trainer)
        if current_ranks().is_main:
            print("\n".join(measured))
        return None


def build_model(config: TrainCommand) -> BiEncoder:
    """Builds the towers from ``model_file``, whose own settings take precedence over ``encoder``, or from
    ``encoder.pretrained_model_cfg``.

    Raises:
        ConfigError: ``encoder`` contradicts what the model states about vectors or texts.
    """
    encoder = config.encoder
    options = TowerOptions(
        **vars(config.loss.part(TemperatureSettings)), **vars(encoder.part(RunningSettings))
    )
    given = {
        name: leaf.value
        for name, leaf in leaves(encoder).items()
        if name in EncoderSettings.__dataclass_fields__ and leaf.value != leaf.default
    }
    if encoder.shared:
        # One tokenizer serves both sides of a shared tower, in other libraries too, and cannot change the
        # apostrophes of questions alone.
        given.setdefault("plain_apostrophes", False)
    given["dpr_trailing_sep"] = config.trailing_sep()
    settings = EncoderSettings(lora_alpha=2.0 * encoder.lora_rank, **given)
    if config.model_file is not None:
        model = BiEncoder.load(
            config.model_file,
            options=options,
            dropout=encoder.dropout,
            pretrained_model_cfg=encoder.named_model(),
            special_tokens=config.special_tokens or (),
            trailing_sep=encoder.dpr_trailing_sep is not False,
            settings=settings,
            text=encoder,
        )
        # A model keeps its own pooling and the like; another one that is set is refused in training.
        names = ["pooling", "normalize", "shared", "projection_dim"]
        if model.settings.adapter != "none":
            names.append("lora_rank")
        for name in names:
            stated = getattr(encoder, name)
            stored = getattr(model.settings, name)
            if stated in (stored, getattr(VectorSettings(), name)):
                continue
            if config.train_datasets:
                raise ConfigError(
                    f"encoder.{name}={stated}, but {config.model_file} has {stored}; leave it out, a model"
                    " keeps its own"
                )
            if current_ranks().is_main:
                logger.warning(
                    "encoder.%s=%s has no effect: %s has %s", name, stated, config.model_file, stored
                )
        if encoder.static_questions and not model.settings.static_questions:
            model.use_static_questions()
        return model
    if encoder.encoder_model_type == "static":  # its learning rates would ruin any other encoder
        folder = Path(encoder.pretrained_model_cfg)
        if not ((folder / "config.json").is_file() and read_config(folder).model_type == "static"):
            raise ConfigError(
                f"encoder=static, but encoder.pretrained_model_cfg={folder} is not the folder of a static"
                " encoder; make one with dpr new-encoder corpus=FILE out=FOLDER layers=0 hidden=1024"
                f" (tokenizer={folder} takes the tokenizer of a model)"
            )
    return BiEncoder.from_pretrained(
        encoder.pretrained_model_cfg,
        settings,
        pretrained=encoder.pretrained,
        dropout=encoder.dropout,
        do_lower_case=config.do_lower_case,
        special_tokens=config.special_tokens or (),
        options=options,
    )


def open_sets(
    sources: Sequence[NamedSource], config: TrainCommand, loss_scales: Sequence[float] | None = None
) -> OpenedSets:
    """Opens data sets with their options. The first opening of a file reads it once and stores it in a form
    that is memory-mapped."""
    if loss_scales is not None:
        if scaled := next((source.name for source in sources if source.options.loss_scale is not None), None):
            raise ConfigError(
                f"datasets.{scaled}.loss_scale and loss_scale_factors are mutually exclusive; leave one of"
                " them out"
            )
        if len(loss_scales) != len(sources):
            raise ConfigError(
                f"loss_scale_factors has {len(loss_scales)} values for {len(sources)} train_datasets; give"
                " one for each"
            )
    opened: OpenedSets = []
    scales = [source.options.loss_scale for source in sources] if loss_scales is None else loss_scales
    for source, scale in zip(sources, scales, strict=True):
        given = source.options
        data: SampleSource
        if given.reader is not None:
            data = user_data(given.reader, source.files, name=source.name)
        elif given.pairs is not None:
            if len(source.files) > 1:
                raise ConfigError(
                    f"datasets.{source.name}.file names {len(source.files)} files, but pairs are cut from one"
                    " corpus; make an entry of each"
                )
            data = PseudoPairs(
                source.files[0],
                name=source.name,
                kinds=given.pairs,
                held_back=given.held_back,
                held_only=given.held_only,
            )
        else:
            data = open_training_set(
                source.files,
                name=source.name,
                on_bad_row=config.on_bad_row,
                max_bad_rows=config.max_bad_rows,
            )
        if given.encoder_type == "ctx" and config.encoder.fix_ctx_encoder:
            keys = f"datasets.{source.name}.encoder_type=ctx and encoder.fix_ctx_encoder=true"
            raise ConfigError(f"{keys} are mutually exclusive; nothing would train")
        opened.append((data, replace(given, file=None, reader=None, source=None, loss_scale=scale)))
    return opened


def make_trackers(config: TrainCommand) -> list[Callback]:
    """Makes the trackers that ``tracking`` names. They follow user-defined callbacks, so they get the metrics
    that those add."""
    tracking = config.tracking
    trackers = list[Callback]()
    if tracking.tensorboard:
        trackers.append(TensorBoard(Path(str(config.output_dir)) / "tensorboard"))
    if tracking.wandb:
        trackers.append(WeightsAndBiases())
    return trackers


def evaluate(
    config: TrainCommand, model: BiEncoder, dev_sets: OpenedSets, validations: Sequence[Validation]
) -> float:
    """Evaluates only, on the objects that training uses. Prints a table; output_dir gets metrics.json.
    Returns the NLL, or without dev sets the first metric."""
    own = dev_validations(dev_sets, config) if dev_sets else []
    metrics = run_validations([*own, *validations], model)
    if current_ranks().is_main:
        for name, value in each_once(metrics, by_set=True).items():
            print(f"{name:<40} {value:.6f}")
    if config.output_dir is not None:
        folder = Path(config.output_dir)

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "metrics.json", metrics, note={})

        on_main(write)
    return metrics.get("eval/nll_loss", next(iter(metrics.values())))
