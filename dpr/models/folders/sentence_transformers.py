"""Reader of a sentence-transformers folder: one tower, or two, from the modules that ``modules`` finds in it."""

from __future__ import annotations

from dataclasses import replace

from dpr.core.errors import CheckpointError
from dpr.data.text import SPACED_TITLE
from dpr.formats.model_folder import ModelFolder
from dpr.models.folders.dense import projected
from dpr.models.folders.foreign_towers import ForeignTower, joined, marks_segments
from dpr.models.folders.hugging_face import backbone_tower
from dpr.models.folders.modules import (
    SIDES,
    STATIC,
    Modules,
    described_settings,
    read_modules,
    stated_length,
)
from dpr.models.folders.peft_adapter import adapter_tower, is_adapter
from dpr.models.folders.static_table import static_tower
from dpr.models.model_parts import ModelParts
from dpr.models.settings import EncoderSettings


def sentence_transformers_parts(
    folder: ModelFolder, settings: EncoderSettings, base: str | None
) -> ModelParts:
    """Reads one tower, or the two of a Router, from the modules of the folder. Each side has its own length."""
    sides = read_modules(folder)
    settings, stated = described_settings(folder, sides, settings)
    read: dict[Modules, tuple[ForeignTower, int | None]] = {}
    for modules in dict.fromkeys(sides):
        length = None
        if modules.kind == STATIC:
            tower, length = static_tower(modules.body)
        elif is_adapter(modules.body):
            tower = adapter_tower(modules.body, base)
        else:
            tower = backbone_tower(modules.body)
        read[modules] = projected(tower, modules.dense), length
        if marks_segments(tower, "1"):
            raise CheckpointError(
                "its tokenizer gives the tokens of a text other types",
                file=tower.source,
                expected="token type 0; the toolkit has no other",
            )
        if "title_template" not in stated and not settings.title_template and marks_segments(tower, "1", "2"):
            # Users of the library encode titles this way; a pair would have token types.
            settings = replace(settings, title_template=SPACED_TITLE)
    lengths = []
    for side, modules in zip(SIDES, sides, strict=True):
        tower, length = read[modules]
        positions = getattr(tower.config, "max_position_embeddings", None) or 0
        lengths.append(length or stated_length(modules.body, side, min(positions, tower.longest)))
    (question, _), (ctx, _) = (read[modules] for modules in sides)
    width = question.settings.get("projection_dim", question.config.hidden_size)
    if settings.dimensions >= width:  # nothing to cut
        settings = replace(settings, dimensions=0)
    return joined(question, ctx, settings, lengths=lengths, stated=stated, own_text=True)
