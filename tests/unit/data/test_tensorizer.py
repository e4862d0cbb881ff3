"""Token ids as DPR checkpoints expect them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.data.collator import Collator
from dpr.data.loader import cut_into_batches
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import normalize_passage, normalize_question
from dpr.data.tokenizer_files import append_end_token
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from tests.helpers.decoders import BEGIN, END, KINDS, byte_tokenizer, decoder_folder
from tests.helpers.decoders import VOCABULARY as BYTES
from tests.helpers.tiny import VOCABULARY, ListSource, encoder_folder, make_samples
from tests.unit.data.test_joining import fast_tokenizer, stored

CLS, SEP, MASK = (VOCABULARY.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))


def ids(words: str) -> list[int]:
    return [VOCABULARY.index(word) for word in words.split()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_folder(tmp_path_factory.mktemp("tokenizer"))


def tensorizer(folder: Path, length: int = 12, **options: object) -> Tensorizer:
    return Tensorizer.load(folder, sequence_length=length, **options)  # type: ignore[arg-type]


def test_a_title_makes_a_pair_and_no_title_a_single_text(folder: Path) -> None:
    passages = [Passage(" ba be ", "da"), Passage(" ba be "), Passage("ba", " ")]
    encoded = tensorizer(folder).passage_tokens(passages)
    assert encoded[0] == [CLS, *ids("da"), SEP, *ids("ba be"), SEP]
    assert encoded[1] == [CLS, *ids("ba be"), SEP]
    assert encoded[2] == [CLS, SEP, *ids("ba"), SEP]


def test_truncation_takes_from_the_longest_part_and_keeps_the_last_separator(folder: Path) -> None:
    long = Passage("ba be bi bo bu ca ce ci co cu", "da de")
    (tokens,) = tensorizer(folder, 9).passage_tokens([long])
    assert tokens == [CLS, *ids("da de"), SEP, *ids("ba be bi bo"), SEP]
    assert tensorizer(folder, 5).question_tokens(["ba be bi bo bu"]) == [[CLS, *ids("ba be bi"), SEP]]


@pytest.mark.parametrize("length", [3, 5, 12])
def test_long_titles_are_cut_alike(folder: Path, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two long parts the tokenizer makes every pair of windows."""
    sizes = (10, 1), (10, 10), (100, 3), (40, 200)
    passages = [Passage("da be " * texts, "ba di " * titles) for titles, texts in sizes]
    pairs = [(passage.title, passage.text.strip()) for passage in passages]
    expected = tensorizer(folder, length)._encode(pairs, length)
    ours = tensorizer(folder, length)
    monkeypatch.setattr(ours, "_encode", lambda texts, length: [pytest.fail("asked")] if texts else [])
    assert ours.passage_tokens(passages) == expected


def test_the_typographic_apostrophe_becomes_plain_in_questions_only(folder: Path) -> None:
    assert (
        normalize_question("l\N{RIGHT SINGLE QUOTATION MARK}a \N{LEFT SINGLE QUOTATION MARK}b")
        == "l'a \N{LEFT SINGLE QUOTATION MARK}b"
    )
    known = tensorizer(folder)
    assert known.question_tokens(["ba\N{RIGHT SINGLE QUOTATION MARK}"]) == [[CLS, *ids("ba '"), SEP]]
    assert known.passage_tokens([Passage("ba\N{RIGHT SINGLE QUOTATION MARK}")]) != [[CLS, *ids("ba '"), SEP]]


def test_normalised_passages_lose_one_pair_of_quotes() -> None:
    assert normalize_passage('"a\nb\N{RIGHT SINGLE QUOTATION MARK}s"') == "a b's"
    assert normalize_passage('""a""') == '"a"'


def test_special_tokens_take_unused_slots_and_survive_saving(folder: Path, tmp_path: Path) -> None:
    special = tensorizer(folder, special_tokens=["[Qa]", "[Qb]"])
    expected = [[CLS, 1, *ids("ba"), 2, SEP]]
    assert special.question_tokens(["ba [Qb]"], prefix="[Qa] ") == expected
    special.save(tmp_path)
    assert tensorizer(tmp_path).question_tokens(["[Qa] ba [Qb]"]) == expected
    assert len(special.tokenizer) == len(VOCABULARY)
    with pytest.raises(ConfigError, match=r"\[unused3\]"):
        tensorizer(folder, special_tokens=["[1]", "[2]", "[3]", "[4]"])


def test_selectors(folder: Path) -> None:
    special = tensorizer(folder, special_tokens=["[E]"])
    tokens = special.question_tokens(["ba [E] be [E]", "ba be"])
    assert special.representation_positions(tokens, "[E]") == [2, 0]
    assert special.representation_positions(tokens, None) == [0, 0]
    assert special.representation_positions(tokens, 5) == [5, 3]
    with pytest.raises(ConfigError, match="not a token"):
        special.representation_positions(tokens, "[nope]")


@pytest.mark.parametrize("selector", [1000, 12, -1, True, False, 1.5, "", "[nope]", [0]])
def test_a_selector_that_is_no_position_and_no_token_is_refused(folder: Path, selector: Any) -> None:
    small = tensorizer(folder)
    with pytest.raises(ConfigError, match="selector="):
        small.representation_positions(small.question_tokens(["ba be"]), selector)
    # A data set with it is refused when the global batches are planned, before a worker meets it.
    sets = [(ListSource(make_samples(4)), DataSetSettings(selector=selector))]
    collator = Collator(small, num_hard=0, num_other=0)
    with pytest.raises(ConfigError, match="selector="):
        cut_into_batches(sets, collator, global_batch_size=2, ranks=Ranks(), seed=0)


def test_a_crop_is_a_window_of_the_text_behind_the_title(folder: Path) -> None:
    known, generator = tensorizer(folder, 64), np.random.default_rng(0)
    text = "ba be bi bo bu ca ce ci co cu"
    crops = {tuple(known.cropped_passage_tokens(Passage(text, "da"), 8, generator)) for _ in range(60)}
    whole = ids(text)
    windows = {(CLS, *ids("da"), SEP, *whole[start : start + 4], SEP) for start in range(7)}
    assert crops == windows
    short = Passage("ba be", "da")
    assert known.cropped_passage_tokens(short, 8, generator) == known.passage_tokens([short])[0]
    titled = known.cropped_passage_tokens(Passage(text, text), 9, generator)
    assert len(titled) == 9
    assert titled[:4] == [CLS, *whole[:3]]


def test_masking_spares_special_tokens_and_follows_its_probability(folder: Path) -> None:
    known = tensorizer(folder)
    tokens = [CLS, *ids("ba be bi bo") * 500, SEP]
    masked = known.masked(tokens, 0.1, np.random.default_rng(0))
    assert (masked[0], masked[-1]) == (CLS, SEP)
    assert 150 < masked.count(MASK) < 250
    assert all(new in (old, MASK) for new, old in zip(masked, tokens, strict=True))


def test_the_fingerprint_depends_on_vocabulary_and_lengths_and_not_on_use(folder: Path) -> None:
    known = tensorizer(folder)
    before = known.fingerprint
    known.question_tokens(["ba be"])
    assert known.fingerprint == before == tensorizer(folder).fingerprint
    assert before != tensorizer(folder, 13).fingerprint
    assert before != tensorizer(folder, special_tokens=["[Q]"]).fingerprint


def test_a_folder_without_a_tokenizer_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pretrained_model_cfg"):
        tensorizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.txt", ""),
        ("tokenizer_config.json", '{"tokenizer_class": "RobertaTokenizer"}'),  # which reads another file
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"),
    ],
    ids=["missing", "another's", "special tokens alone"],
)
def test_a_folder_without_a_vocabulary_is_refused(name: str, content: str, tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "bare", vocab_size=5 if "PAD" in content else len(VOCABULARY))
    (folder / name).unlink(missing_ok=True)
    if content:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match="has no vocabulary"):
        Tensorizer.load(folder, sequence_length=24)


@pytest.mark.parametrize("kept", ["vocab.txt", "tokenizer.json", "tokenizer.4.0.0.json"])
def test_a_vocabulary_of_special_tokens_and_a_word_is_one(kept: str, tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "small", vocab_size=6)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nba\n")
    if kept != "vocab.txt":
        Tensorizer.load(folder, sequence_length=24).save(folder)
        (folder / "vocab.txt").unlink()
        (folder / "tokenizer.json").rename(folder / kept)
        config = json.loads((folder / "tokenizer_config.json").read_text()) | {"fast_tokenizer_files": [kept]}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tensorizer.load(folder, sequence_length=24).question_tokens(["ba"]) == [[2, 5, 3]]


def test_a_text_without_any_token_is_one_token_for_every_use() -> None:
    """Without special tokens an empty text has no token, but needs a vector."""
    plain = Tensorizer(fast_tokenizer("gpt2", eos_token="?"), sequence_length=8)
    end = [VOCABULARY.index("?")]
    assert plain.question_tokens(["", "ba", " "]) == [end, ids("ba"), end]
    assert plain.passage_tokens([Passage(""), Passage(" \n"), Passage("", "ba")]) == [end, end, ids("ba")]
    assert plain.cropped_passage_tokens(Passage(""), 4, np.random.default_rng(0)) == end
    assert plain.representation_positions([end], 3) == [0]


@pytest.mark.parametrize(
    ("kind", "pair", "single"), [("bert", 3, 2), ("roberta", 4, 2), ("t5", 2, 1), ("gpt2", 0, 0)]
)
def test_a_length_that_special_tokens_exceed_is_refused(kind: str, pair: int, single: int) -> None:
    least = max(pair, 1)
    made = Tensorizer(fast_tokenizer(kind), sequence_length=least, question_length=max(single, 1))
    assert len(made.passage_tokens([Passage("ba be", "bi bo")])[0]) == least
    assert len(made.question_tokens(["ba be"])[0]) == max(single, 1)
    if pair:
        with pytest.raises(ConfigError, match=f"{pair - 1} is less than the {pair} special tokens"):
            Tensorizer(fast_tokenizer(kind), sequence_length=pair - 1)
    if single > 1:
        with pytest.raises(ConfigError, match=f"{single - 1} is less than the {single} special tokens"):
            Tensorizer(fast_tokenizer(kind), sequence_length=8, question_length=single - 1)


def test_what_is_saved_does_not_depend_on_use(folder: Path, tmp_path: Path) -> None:
    """A tokenizer's state, and so its files, include how the last call cut and padded."""

    def saved(known: Tensorizer, name: str) -> dict[str, bytes]:
        (tmp_path / name).mkdir()
        known.save(tmp_path / name)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    known = tensorizer(folder)
    before = saved(known, "before")
    uses = (
        lambda: known.question_tokens(["ba be"]),
        lambda: known.passage_tokens([Passage("1", "ba", "be")]),
        lambda: known.bare_tokens(["ba"]),
        lambda: known.tokenizer(["ba", "ba be"], padding="max_length", max_length=9, truncation=True),
    )
    for number, use in enumerate(uses):
        use()
        assert saved(known, f"after{number}") == before
    known.tokenizer.save_pretrained(str(tmp_path / "other"))  # as a checkpoint of an earlier version has it
    assert '"max_length": 9' in (tmp_path / "other" / "tokenizer.json").read_text()
    again = tensorizer(tmp_path / "other")
    assert saved(again, "again")["tokenizer.json"] == before["tokenizer.json"]
    again.passage_tokens([Passage("1", "ba", "be")])
    assert saved(again, "again used") == saved(tensorizer(tmp_path / "other"), "not used")
    assert again.fingerprint == known.fingerprint
    assert again.vocabulary_fingerprint == known.vocabulary_fingerprint


def test_an_expression_without_end_is_one_line(tmp_path: Path) -> None:
    made = tensorizer(encoder_folder(tmp_path))
    split = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    made.tokenizer.backend_tokenizer.pre_tokenizer = split
    assert made.question_tokens(["ba"])
    with pytest.raises(InputError, match="the tokenizer fails on a text"):
        made.question_tokens(["a" * 60 + "!"])


EOS = BYTES[END]
PASSAGES = [Passage("abcdefghijkl"), Passage("xyz" * 9, "title"), Passage("xyz", "a title that is long")]
PASSAGES += [Passage(""), Passage("b")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [4, 9, 40])
def test_an_end_token_survives_truncation(kind: str, length: int) -> None:
    tokenizer = byte_tokenizer(kind)
    append_end_token(tokenizer)
    tensorizer = Tensorizer(tokenizer, sequence_length=length)
    found = [*tensorizer.question_tokens(["abcdefghijkl", "a", ""]), *tensorizer.passage_tokens(PASSAGES)]
    assert all(tokens[-1] == EOS and tokens.count(EOS) == 1 and len(tokens) <= length for tokens in found)
    begin = [BYTES[BEGIN]] if kind == "llama" else []
    assert found[0][:-1] == [*begin, *range(BYTES["a"], BYTES["m"])][: length - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_put_there_once_and_stored_with_the_tokenizer(kind: str, tmp_path: Path) -> None:
    byte_tokenizer(kind).save_pretrained(str(tmp_path / "plain"))
    first = Tensorizer.load(tmp_path / "plain", sequence_length=9, append_eos=True)
    first.save(tmp_path)
    for again in (True, False):
        second = Tensorizer.load(tmp_path, sequence_length=9, append_eos=again)
        assert second.passage_tokens(PASSAGES) == first.passage_tokens(PASSAGES)
        assert second.fingerprint == first.fingerprint
    plain = Tensorizer.load(tmp_path / "plain", sequence_length=9)
    assert (plain.fingerprint == first.fingerprint) == (kind == "qwen3 embedding")


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_store_and_random_windows_end_with_it_too(kind: str) -> None:
    tokenizer = byte_tokenizer(kind)
    append_end_token(tokenizer)
    tensorizer = Tensorizer(tokenizer, sequence_length=9)
    joined = tensorizer.passage_tokens([stored(tensorizer, passage) for passage in PASSAGES])
    assert joined == tensorizer.passage_tokens(PASSAGES)
    for passage in PASSAGES:
        assert tensorizer.cropped_passage_tokens(passage, 9, np.random.default_rng(0))[-1] == EOS


def test_tokenizers_without_one_and_of_other_kinds_are_refused_and_bert_has_its_own() -> None:
    with pytest.raises(ConfigError, match="has no end token"):
        append_end_token(byte_tokenizer(eos_token=None, pad_token=None))
    with pytest.raises(ConfigError, match="adds special tokens by RobertaProcessing"):
        append_end_token(fast_tokenizer("roberta", eos_token="[MASK]"))
    bert = fast_tokenizer("bert", eos_token="[SEP]")
    before = bert.backend_tokenizer.to_str()
    append_end_token(bert)
    assert bert.backend_tokenizer.to_str() == before


def test_a_decoder_that_is_read_at_its_last_token_needs_one(tmp_path: Path) -> None:
    folder = str(decoder_folder(tmp_path / "decoder"))
    settings = {"pooling": "last", "sequence_length": 16, "shared": True}
    with pytest.raises(ConfigError, match=r"set encoder\.append_eos=true"):
        BiEncoder.from_pretrained(folder, EncoderSettings(**settings), pretrained=False)
    with_end = EncoderSettings(**settings, append_eos=True)
    model = BiEncoder.from_pretrained(folder, with_end, pretrained=False).eval()
    assert model.question_model.is_packed
    model.save(tmp_path / "saved")
    loaded = BiEncoder.load(tmp_path / "saved")
    assert loaded.settings.append_eos and loaded.fingerprint == model.fingerprint
    texts = ["a text that is longer than sixteen tokens", "short", ""]
    assert np.array_equal(loaded.encode(texts), model.encode(texts))
    ends = decoder_folder(tmp_path / "with an end", "qwen3 embedding")
    BiEncoder.from_pretrained(str(ends), EncoderSettings(**settings), pretrained=False)
