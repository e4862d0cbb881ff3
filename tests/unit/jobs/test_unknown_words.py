"""Texts that the vocabulary lacks are said, or refused where they are most; half a character is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.main import main
from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.training_files.dpr import write_training_set
from tests.helpers.tiny import WORDS, encoder_folder, tiny_model

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
