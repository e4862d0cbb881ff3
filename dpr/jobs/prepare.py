"""``dpr prepare SOURCE ... out=OUT``: training data from other formats, from a folder of documents, or cut
from a corpus; ``dpr new-encoder``: an encoder folder with a new vocabulary, for training from scratch."""

from __future__ import annotations

from pathlib import Path

from dpr.formats.training_files.registry import look_at
from dpr.preparation.conversion import convert
from dpr.preparation.folder_data import prepare_folder
from dpr.preparation.new_encoder import EncoderShape, new_encoder
from dpr.preparation.pseudo_questions import prepare_pairs
from dpr.preparation.settings import FolderSettings, NewEncoderSettings, PairFileSettings, PrepareSettings


def run(config: PrepareSettings) -> None:
    """Makes the data that the settings ask for, and prints how much there is of each kind."""
    out = Path(str(config.out))
    source = Path(config.sources[0])
    is_folder = len(config.sources) == 1 and source.is_dir() and not (config.format or config.columns())
    if config.pairs is not None:
        how = config.part(PairFileSettings)
        counts = prepare_pairs(source, out, how, overwrite=config.overwrite)
    elif is_folder and not look_at(source)[0]:
        counts = prepare_folder(source, out, config.part(FolderSettings), overwrite=config.overwrite)
    else:
        print(f"{out}: {convert(config)}")
        return
    kinds = counts.pop("test questions by kind", {})
    print(f"{out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    if kinds:
        print("test questions are " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()))


def make_encoder(config: NewEncoderSettings) -> None:
    """Writes an encoder without weights."""
    out = Path(str(config.out))
    size = new_encoder(
        out,
        str(config.corpus),
        config.questions,
        shape=EncoderShape(
            config.layers,
            config.hidden,
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            lower_case=not config.cased,
        ),
        tokenizer=config.tokenizer,
        overwrite=config.overwrite,
    )
    kind = f"{config.layers} layers" if config.layers else "static"
    print(f"{out}: {kind}, {config.hidden:,} dimensions, {size:,} tokens; training initialises the weights")
