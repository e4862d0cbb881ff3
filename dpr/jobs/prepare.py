"""``dpr prepare SOURCE ... out=OUT``: training data from other formats, from a folder of documents, or cut
from a corpus."""

from __future__ import annotations

from pathlib import Path

from dpr.formats.text_input import expand_files
from dpr.formats.training_files.registry import look_at
from dpr.preparation.conversion import Corrections, convert, read_options
from dpr.preparation.folder_data import prepare_folder
from dpr.preparation.pseudo_questions import prepare_pairs
from dpr.preparation.settings import FolderSettings, PairFileSettings, PrepareSettings


def run(config: PrepareSettings) -> None:
    """Makes what the settings ask for, and prints how much of everything there is."""
    out = Path(str(config.out))
    source = Path(config.sources[0])
    if config.pairs is not None:
        how = config.part(PairFileSettings)
        counts = prepare_pairs(source, out, how, overwrite=config.overwrite)
        print(f"{out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    elif _is_of_documents(config):
        reading = config.part(FolderSettings)
        counts = prepare_folder(source, out, reading, overwrite=config.overwrite, few=config.few)
        kinds = counts.pop("test questions by kind")
        print(f"{out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
        if kinds:
            print("test questions are " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()))
    else:
        corrections = None
        if config.suspects is not None:
            corrections = Corrections(Path(config.suspects), relabel=config.relabel)
        converted = convert(
            expand_files(config.sources),
            out,
            read_options(config),
            format_name=config.format,
            to=config.to,
            skip_bad_rows=config.on_bad_row == "skip",
            max_bad_rows=config.max_bad_rows,
            corrections=corrections,
            overwrite=config.overwrite,
        )
        print(f"{out}: {converted or 'there already, made of the same'}")


def _is_of_documents(config: PrepareSettings) -> bool:
    """Whether there is one source, a folder that holds no training data."""
    source = Path(config.sources[0])
    if len(config.sources) > 1 or not source.is_dir() or config.format or config.columns():
        return False
    seen = look_at(source)
    return seen.kind == "folder" and not seen.fit
