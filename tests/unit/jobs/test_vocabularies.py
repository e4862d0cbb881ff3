"""Case and accents are those of the vocabulary, in every command; texts that it lacks are said or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.main import main
from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs.train import build_model
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.preparation.data_check import open_tokenizer
from dpr.training.command_settings import TrainCommand
from tests.helpers.tiny import WORDS, encoder_folder, static_folder, tiny_model

TEXT = "PARIS Élan élan paris"
CASED_WORDS = ["PARIS", "Élan", "élan", "paris", "elan"]


def cased_folder(folder: Path, kind: str, *, static: bool = False) -> Path:
    """The folder of an encoder whose vocabulary tells capitals and accents apart."""
    (static_folder if static else encoder_folder)(folder)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "MPNetTokenizer" else []
    vocabulary = [*specials, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CASED_WORDS]
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
        assert tensorizer.tokenizer.convert_ids_to_tokens(tokens) == CASED_WORDS[:4]


def test_lower_casing_that_was_asked_for_is_heeded_when_the_model_is_opened(tmp_path: Path) -> None:
    trained(cased_folder(tmp_path / "encoder", "BertTokenizer"), do_lower_case=True).save(tmp_path / "model")
    model = BiEncoder.load(tmp_path / "model")
    (tokens,) = model.tensorizer.bare_tokens([TEXT])
    assert model.tensorizer.tokenizer.convert_ids_to_tokens(tokens) == ["paris", "elan", "elan", "paris"]


FOREIGN = "गंगा नदी उत्तर भारत में बहती है कहाँ और कब"
KNOWN = " ".join(WORDS[:10])


@pytest.fixture
def model(tmp_path: Path) -> str:
    tiny_model(tmp_path / "encoder", shared=True).float().save(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize(
    ("num_foreign", "said", "code"),
    [(0, False, 0), (4, True, 0), (12, True, 3)],
    ids=["known", "a third foreign", "all foreign"],
)
def test_train_and_embed_say_unknown_words_and_refuse_a_text_of_them(
    tmp_path: Path, model: str, num_foreign: int, said: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"{FOREIGN if row < num_foreign else KNOWN} {WORDS[row]}" for row in range(12)]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": str(row), "text": text}) + "\n" for row, text in enumerate(texts))
    )
    write_training_set(tmp_path / "train.jsonl", [TrainingSample(text, (Passage(text),)) for text in texts])
    embed = f"embed model_file={model} ctx_src={tmp_path}/corpus.jsonl out_file={tmp_path}/vectors"
    train = (
        f"train encoder.pretrained_model_cfg={tmp_path}/encoder encoder.pretrained=false encoder.sequence_length=24"
        f" train_datasets={tmp_path}/train.jsonl output_dir={tmp_path}/run train.batch_size=4 train.max_steps=1"
        " train.num_workers=0"
    )
    for command in (embed, train):
        assert main([*command.split(), "device=cpu"]) == code
        assert ("[UNK]" in capsys.readouterr().err) == said, command


def test_retrieve_says_unknown_words_of_questions(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "a", "text": KNOWN}) + "\n")
    embed = f"embed model_file={model} ctx_src={tmp_path}/corpus.jsonl out_file={tmp_path}/vectors"
    assert main(embed.split()) == 0
    for text in (KNOWN, FOREIGN):
        (tmp_path / "questions.jsonl").write_text(json.dumps({"_id": "q", "text": text}) + "\n")
        line = f"retrieve model_file={model} qa_dataset={tmp_path}/questions.jsonl match=none"
        line += f" encoded_ctx_files=[{tmp_path}/vectors_0] trec_run_file={tmp_path}/out.run"
        assert main(line.split()) == 0
        assert ("100% of the tokens of" in capsys.readouterr().err) == (text == FOREIGN)


@pytest.mark.parametrize("kind", ["bytes", "end"])
def test_vocabularies_that_lack_nothing_have_no_unknown_tokens(tmp_path: Path, kind: str) -> None:
    """GPT-2's unknown token is its end token; RoBERTa has one that never occurs."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    from dpr.data.tensorizer import Tensorizer

    bytes_alone = ByteLevelBPETokenizer()
    bytes_alone.train_from_iterator([KNOWN], vocab_size=300, special_tokens=["<unk>", "<end>"])
    names: dict[str, Any] = {"unk_token": "<end>" if kind == "end" else "<unk>", "eos_token": "<end>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_alone._tokenizer, **names)
    tensorizer = Tensorizer(tokenizer, sequence_length=500)
    (tokens,) = tensorizer.question_tokens([FOREIGN])
    share, count = tensorizer.unknown_share(np.array([*tokens, tokenizer.eos_token_id]))
    assert (share, count) == (0.0, len(tokens))


@pytest.mark.parametrize("title", ["", "\udce8"])
@pytest.mark.parametrize("text", ["rivi\udce8re", "\ud83d", "ba \ude00 be"])
def test_half_a_character_is_refused_in_a_sentence(tmp_path: Path, title: str, text: str) -> None:
    encoder_folder(tmp_path / "bert")
    model = tiny_model(tmp_path / "bert")
    for call in (
        lambda: model.encode_questions(["ba", text]),
        lambda: model.encode_passages([Passage("ba"), Passage(text, title)]),
        lambda: model.tensorizer.cropped_passage_tokens(Passage(text, title), 8, np.random.default_rng(0)),
    ):
        with pytest.raises(InputError, match="half a character"):
            call()
