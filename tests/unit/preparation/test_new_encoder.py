"""An encoder folder that Hugging Face's loaders read, the same from run to run."""

import json
import random
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.formats.corpora import write_passages
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.preparation.new_encoder import EncoderShape, train_vocabulary
from dpr.storage.durable import verify_folder
from tests.helpers.jobs import new_encoder as main


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    generator = random.Random(0)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(400)]
    path = tmp_path / "corpus.tsv"
    texts = [" ".join(generator.choices(words, k=30)) + ", Caf\u00e9!" for _ in range(200)]
    write_passages(path, [Passage(text, "A Title", str(row)) for row, text in enumerate(texts)])
    return path


def make(corpus: Path, out: Path, *more: str) -> int:
    return main(["--corpus", str(corpus), "--out", str(out), "--vocab-size", "300", "--hidden", "32", *more])


def test_two_runs_write_the_same_files(corpus: Path, tmp_path: Path) -> None:
    # The trainer's hash tables have another seed every time, which is what made vocabularies differ.
    assert make(corpus, tmp_path / "first") == make(corpus, tmp_path / "second") == 0
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    model = ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    assert files == ["config.json", "manifest.json", "token_frequencies.json", *model]
    for name in files:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    assert verify_folder(tmp_path / "first") == []


def test_the_folder_loads_as_an_encoder_with_its_tokenizer(corpus: Path, tmp_path: Path) -> None:
    assert make(corpus, tmp_path / "encoder", "--layers", "2") == 0
    model = BiEncoder.from_pretrained(
        str(tmp_path / "encoder"), EncoderSettings(sequence_length=32), pretrained=False
    )
    assert model.question_model.config.num_hidden_layers == 2
    assert model.encode_questions(["baba caf\u00e9"]).shape == (1, 32)
    tokenizer = model.tensorizer.tokenizer
    assert len(tokenizer) == model.question_model.config.vocab_size == 300
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(tokenizer, f"{name}_token") == f"[{name.upper()}]"
    assert tokenizer.pad_token_id == 0
    vocabulary = (tmp_path / "encoder" / "vocab.txt").read_text().splitlines()
    assert tokenizer.convert_tokens_to_ids(vocabulary) == list(range(300))
    pair = tokenizer("A", "b")["input_ids"]
    assert [vocabulary[token] for token in pair] == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
    assert tokenizer.decode(tokenizer("CAF\u00c9!")["input_ids"], skip_special_tokens=True) == "cafe!"


def test_questions_enter_the_vocabulary(corpus: Path, tmp_path: Path) -> None:
    questions = tmp_path / "train.json"
    questions.write_text(json.dumps([{"question": "xyzzy xyzzy", "positive_ctxs": []}] * 200))
    make(corpus, tmp_path / "without")
    make(corpus, tmp_path / "with", "--questions", str(questions))
    assert "xyzzy" not in (tmp_path / "without" / "vocab.txt").read_text().splitlines()
    assert "xyzzy" in (tmp_path / "with" / "vocab.txt").read_text().splitlines()


def test_a_vocabulary_has_the_asked_size_each_token_once_and_reserved_ones_first() -> None:
    texts = ["some words and some more words", "and yet other words"]
    vocabulary = train_vocabulary(lambda: texts, EncoderShape(vocab_size=70, num_unused=2))
    assert vocabulary[:7] == ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(vocabulary)) == len(vocabulary) <= 70
    assert "words" in vocabulary


def test_a_cased_vocabulary_keeps_case() -> None:
    shape = EncoderShape(vocab_size=60, lower_case=False, num_unused=0)
    vocabulary = train_vocabulary(lambda: ["Alpha Alpha Beta"], shape)
    assert "Alpha" in vocabulary and "alpha" not in vocabulary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vocab-size", "20"], "vocab_size=20"),
        (["--layers", "-1"], "layers=-1 is out of range; it must be at least 0"),
    ],
)
def test_bad_sizes_leave_nothing(corpus: Path, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(corpus, tmp_path / "encoder", *options)
    assert not (tmp_path / "encoder").exists()


def test_a_corpus_without_text_is_refused() -> None:
    with pytest.raises(InputError, match="no text"):
        train_vocabulary(lambda: ["", "  "], EncoderShape(vocab_size=100))


def test_without_layers_it_is_static_with_any_tokenizer(corpus: Path, tmp_path: Path) -> None:
    assert make(corpus, tmp_path / "bert") == 0
    assert make(corpus, tmp_path / "static", "--layers", "0", "--tokenizer", str(tmp_path / "bert")) == 0
    model = BiEncoder.from_pretrained(
        str(tmp_path / "static"), EncoderSettings(sequence_length=32, pooling="idf"), pretrained=False
    )
    assert model.question_model.config.model_type == "static"
    assert model.encode_questions("baba").shape == (32,)
    counts = json.loads((tmp_path / "static" / "token_frequencies.json").read_text())
    tokenizer = model.tensorizer.tokenizer
    assert counts["passages"] == 200 and len(counts["passages_with"]) == len(tokenizer) == 300
    # [CLS] and the comma stand in every passage, [MASK] in none.
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", ",", "[MASK]"])
    assert [counts["passages_with"][token] for token in ids] == [200, 200, 0]

    # of a checkpoint, too; and another one is noticed under the same name
    model.save(tmp_path / "given")
    line = (corpus, tmp_path / "again", "--layers", "0", "--tokenizer", str(tmp_path / "given"))
    assert make(*line) == 0
    mean = EncoderSettings(pooling="mean")
    again = BiEncoder.from_pretrained(str(tmp_path / "again"), mean, pretrained=False)
    assert again.tensorizer.vocabulary_fingerprint == model.tensorizer.vocabulary_fingerprint
    assert make(*line) == 0
    assert make(corpus, tmp_path / "other", "--cased") == 0
    BiEncoder.from_pretrained(str(tmp_path / "other")).save(tmp_path / "given", overwrite=True)
    with pytest.raises(InputError, match="made with another tokenizer"):
        make(*line)


@pytest.mark.parametrize(
    ("shape", "heads"),
    [
        (EncoderShape(num_layers=0, hidden_size=600), 0),
        (EncoderShape(num_layers=0, hidden_size=97, num_heads=12), 0),
        (EncoderShape(num_layers=1, hidden_size=8), 1),
        (EncoderShape(num_layers=2, hidden_size=600), 8),
        (EncoderShape(num_layers=2, hidden_size=64 * 7), 7),
        (EncoderShape(num_layers=1, hidden_size=8, num_heads=12), "num_heads=8 fits"),
        (EncoderShape(num_layers=1, hidden_size=97, num_heads=2), "num_heads=1 fits"),
    ],
)
def test_only_layers_have_heads_that_must_fit(shape: EncoderShape, heads: int | str) -> None:
    if isinstance(heads, str):
        with pytest.raises(ConfigError, match=heads):
            shape.heads()
    else:
        assert shape.heads() == heads
