"""Case and accents of texts are the tokenizer's own in every command, unless the user says otherwise."""

import json
from pathlib import Path

import pytest

from dpr.jobs.train import build_model
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.preparation.data_check import open_tokenizer
from dpr.training.command_settings import TrainCommand
from tests.helpers.tiny import encoder_folder, static_folder

TEXT = "PARIS Élan élan paris"
WORDS = ["PARIS", "Élan", "élan", "paris", "elan"]


def cased_folder(folder: Path, kind: str, *, static: bool = False) -> Path:
    """The folder of an encoder whose vocabulary tells capitals and accents apart."""
    (static_folder if static else encoder_folder)(folder)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "MPNetTokenizer" else []
    vocabulary = [*specials, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": kind, "do_lower_case": False})
    )
    return folder


def trained(folder: Path, **settings: bool) -> BiEncoder:
    """The model that dpr train makes of a folder."""
    config = TrainCommand(device="cpu", **settings)
    config.encoder.pretrained_model_cfg, config.encoder.pretrained = str(folder), False
    config.encoder.sequence_length = 24
    config.encoder.pooling = "mean"
    return build_model(config)


@pytest.mark.parametrize(
    ("kind", "static"), [("BertTokenizer", True), ("DistilBertTokenizer", False), ("MPNetTokenizer", False)]
)
def test_a_cased_vocabulary_stays_cased_in_every_command(tmp_path: Path, kind: str, static: bool) -> None:
    folder = cased_folder(tmp_path / "encoder", kind, static=static)
    python = BiEncoder.from_pretrained(
        str(folder), EncoderSettings(sequence_length=24, pooling="mean"), pretrained=False
    )
    trained(folder).save(tmp_path / "model")
    opened = [python.tensorizer, BiEncoder.load(tmp_path / "model").tensorizer]
    opened += [open_tokenizer(str(path), sequence_length=24) for path in (folder, tmp_path / "model")]
    for tensorizer in opened:
        (tokens,) = tensorizer.bare_tokens([TEXT])
        assert tensorizer.tokenizer.convert_ids_to_tokens(tokens) == WORDS[:4]


def test_lower_casing_that_was_asked_for_is_heeded_when_the_model_is_opened(tmp_path: Path) -> None:
    trained(cased_folder(tmp_path / "encoder", "BertTokenizer"), do_lower_case=True).save(tmp_path / "model")
    model = BiEncoder.load(tmp_path / "model")
    (tokens,) = model.tensorizer.bare_tokens([TEXT])
    assert model.tensorizer.tokenizer.convert_ids_to_tokens(tokens) == ["paris", "elan", "elan", "paris"]
