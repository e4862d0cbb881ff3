"""Pairs cut from a corpus are the same for any number of ranks, from text and from tokens."""

import json
import pickle
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.core.seeding import generator_for
from dpr.data import pairs as pairs_module
from dpr.data.collator import Collator
from dpr.data.cuts import KINDS, MIXED, choose, kinds_of, words_of
from dpr.data.loader import cut_into_batches
from dpr.data.pairs import PseudoPairs
from dpr.data.settings import DataSetSettings, TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredPairs, open_tokens
from dpr.losses.candidates import find_candidates
from dpr.losses.symmetric import competing_questions
from tests.helpers.tiny import WORDS, encoder_folder
from tests.unit.core.test_batch import values

SET = DataSetSettings()


def write_corpus(file: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps({"_id": str(number), **row}) + "\n" for number, row in enumerate(rows)]
    file.write_text("".join(lines))
    return file


def made_rows(count: int) -> list[dict[str, Any]]:
    """Passages with all that decides a cut; two of every three are in one file."""
    draw = random.Random(5)
    sentence = lambda: (
        " ".join(draw.choices(WORDS, k=draw.randint(2, 7))).capitalize()
        + draw.choice([".", ".", "?", '."', " ."])
    )
    rows = []
    for number in range(count):
        text = " ".join(sentence() for _ in range(draw.randint(1, 6)))
        first = draw.choice(WORDS)
        second = draw.choice(WORDS)
        title = draw.choice(["", f"Bo {first}", f"Bo > {first} {second}"])
        metadata = {"file": f"{number // 3}.md"} if number % 3 else {}
        rows.append({"title": title, "text": text, "metadata": metadata})
    rows[4]["text"] = "  "
    rows[7]["text"] = "ba\u4e2d\u6587\u3002 be\n\tbi ba-be ba'bo (do. Du?) e.g. bo"
    return rows


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pairs_module, "_ROWS_PER_BLOCK", 4)
    return write_corpus(tmp_path / "corpus.jsonl", made_rows(40))


@pytest.fixture
def tensorizer(tmp_path: Path) -> Tensorizer:
    made = Tensorizer.load(encoder_folder(tmp_path / "tokenizer"), sequence_length=24, question_length=9)
    made.text = TextSettings(plain_apostrophes=False)
    return made


def drawn(source: Any, row: int, pass_number: int = 0) -> Any:
    return source.drawn(row, generator_for(3, pass_number, row))


@pytest.mark.parametrize("template", ["", "{title} {title} {text}"])
def test_tokens_give_the_pairs_of_the_text(corpus: Path, tensorizer: Tensorizer, template: str) -> None:
    tensorizer.text = TextSettings(plain_apostrophes=False, title_template=template)
    text = PseudoPairs(corpus)
    stored = open_tokens(text, tensorizer, SET)
    assert isinstance(stored, StoredPairs)
    for row in range(len(text)):
        for pass_number in range(4):
            ours, theirs = drawn(stored, row, pass_number), drawn(text, row, pass_number)
            asked = [tensorizer.question_tokens([each.question]) for each in (ours, theirs)]
            assert asked[0] == asked[1]
            assert tensorizer.passage_tokens(ours.positives) == tensorizer.passage_tokens(theirs.positives)
            assert ours.positives[0].identity == theirs.positives[0].identity


def batches_of(
    source: Any, tensorizer: Tensorizer, ranks: Ranks, epoch: int = 0, seed: int | None = 7
) -> list[Any]:
    collator = Collator(tensorizer, num_hard=0, num_other=0, seed=seed)
    global_batches = cut_into_batches([(source, SET)], collator, global_batch_size=12, ranks=ranks, seed=7)
    numbers = range(global_batches.iterator.batches_per_epoch)
    return [global_batches[epoch, number] for number in numbers]


def identities(batches: list[Any]) -> dict[int, list[int]]:
    """That of the positive of each row."""
    found = {}
    for batch in batches:
        found |= dict(zip(batch.rows, batch.context_ids[batch.positive_idx].tolist(), strict=True))
    return found


def test_ranks_share_the_global_batches_of_one_process(corpus: Path, tensorizer: Tensorizer) -> None:
    text = PseudoPairs(corpus)
    for source in (text, open_tokens(text, tensorizer, SET)):
        whole = batches_of(source, tensorizer, Ranks())
        sent = pickle.loads(pickle.dumps(source))
        assert list(map(values, batches_of(sent, tensorizer, Ranks()))) == list(map(values, whole))
        for size in (2, 3):
            parts = [batches_of(source, tensorizer, Ranks(rank, size)) for rank in range(size)]
            for number, batch in enumerate(whole):
                of_global_batch = [part[number] for part in parts]
                assert [row for part in of_global_batch for row in part.rows] == list(batch.rows)
                ids = torch.cat([part.context_ids for part in of_global_batch])
                assert torch.equal(ids, batch.context_ids)
                asked = torch.cat([part.questions.tokens for part in of_global_batch])
                assert torch.equal(asked, batch.questions.tokens)
        later = batches_of(source, tensorizer, Ranks(), epoch=1)
        first, second = identities(whole), identities(later)
        again = [row for row in first if row in second]
        assert len(again) > 10
        assert all(first[row][1] != second[row][1] for row in again)  # another cut in every epoch


@pytest.mark.parametrize("seed", [7, None], ids=["training", "validation"])
def test_documents_give_no_negatives(corpus: Path, tensorizer: Tensorizer, seed: int | None) -> None:
    source = PseudoPairs(corpus)
    for batch in batches_of(source, tensorizer, Ranks(), seed=seed):
        in_corpus = [source.row(row) for row in batch.rows]
        drawn_ids = batch.context_ids[batch.positive_idx, 0].tolist()
        rows = zip(in_corpus, drawn_ids, strict=True)
        documents = [row.document if row.words.text else drawn for row, drawn in rows]
        known = batch.known_positive_ids, batch.known_positive_valid
        facts = batch.positive_idx, batch.context_valid, batch.context_ids
        found = find_candidates("distinct", *facts, *known)
        assert found.counts.all()  # two cuts of one document are two passages
        for question, document in enumerate(documents):
            same = {column for column, other in enumerate(documents) if other == document} - {question}
            masked = {column for column in found.masked[question].tolist() if column < len(documents)}
            assert masked == same
    files = [source.row(row).document for row in (1, 2, 0, 3)]
    assert files[0] == files[1]
    assert len(set(files)) == 3  # rows 0 and 3 have no file: by title


def test_in_place_of_an_empty_passage_any_other_may_come(tmp_path: Path) -> None:
    texts = [f"{word} {word} {word}" for word in WORDS[:6]]
    rows = [{"text": text if number != 2 else "  "} for number, text in enumerate(texts)]
    source = PseudoPairs(write_corpus(tmp_path / "gap.jsonl", rows), kinds="crops", drop_words=0)
    found = Counter(drawn(source, 2, pass_number).positives[0].text.split()[0] for pass_number in range(500))
    assert set(found) == {word for number, word in enumerate(WORDS[:6]) if number != 2}
    assert max(found.values()) < 150


def test_no_question_of_the_document_competes_for_a_passage(corpus: Path, tensorizer: Tensorizer) -> None:
    for batch in batches_of(PseudoPairs(corpus), tensorizer, Ranks()):
        marks = batch.known_positive_valid[:, :, None].to(torch.int64)
        known = torch.cat([batch.known_positive_ids, marks], dim=2)
        own = {"questions": torch.zeros(len(batch), 1), "own_questions": slice(0, len(batch))}
        global_batch = SimpleNamespace(**own, known_positives=known)
        found = competing_questions(global_batch, batch, "distinct")  # type: ignore[arg-type]
        documents = batch.context_ids[:, 0].tolist()
        for row, document in enumerate(documents):
            same = {place for place, other in enumerate(documents) if other == document} - {row}
            assert {question for question in found.masked[row].tolist() if question < len(batch)} == same
            assert int(found.target[row]) == row


@pytest.mark.parametrize(("share", "are_documents"), [(0.5, False), (0.05, True)])
def test_a_title_of_many_passages_is_no_document(tmp_path: Path, share: float, are_documents: bool) -> None:
    titles = ["Bo" if number < share * 200 else f"Bo {number}" for number in range(200)]
    rows = [{"title": title, "text": f"ba be {number}"} for number, title in enumerate(titles)]
    source = PseudoPairs(write_corpus(tmp_path / "titled.jsonl", rows))
    assert (source.row(0).document == source.row(1).document) == are_documents


def test_a_file_of_more_than_half_of_the_passages_is_no_document(tmp_path: Path) -> None:
    """Were it one, hardly any passage would be a negative."""
    rows = [{"title": f"Bo {number // 2}", "text": f"ba be {number}"} for number in range(200)]
    prints = set()
    for share, are_documents in ((1.0, False), (0.5, True)):
        files = [{"file": "book" if number < share * 200 else f"{number}.md"} for number in range(200)]
        both = [{**row, "metadata": file} for row, file in zip(rows, files, strict=True)]
        source = PseudoPairs(write_corpus(tmp_path / f"{share}.jsonl", both))
        assert (source.row(0).document == source.row(2).document) == are_documents
        assert source.row(0).document == source.row(1).document, "of one title or file"
        prints.add(source.corpus_fingerprint)
    assert len(prints) == 2
    held = PseudoPairs(tmp_path / "1.0.jsonl", held_back=0.2, held_only=True)
    assert 0 < len(held) < 100


def test_what_is_held_back_is_held_back_whole(tmp_path: Path) -> None:
    files = [{"file": f"{number // 5}.md"} for number in range(400)]
    rows = [{"text": f"ba be bi. Bo bu {row}", "metadata": file} for row, file in enumerate(files)]
    file = write_corpus(tmp_path / "files.jsonl", rows)
    train, held = PseudoPairs(file, held_back=0.2), PseudoPairs(file, held_back=0.2, held_only=True)
    documents: list[set[int]] = [set(), set()]
    for source, found in zip((train, held), documents, strict=True):
        for row in range(len(source)):
            found |= {drawn(source, row, lap).positives[0].identity[0] for lap in (0, 1)}
    assert not documents[0] & documents[1]
    assert len(documents[0] | documents[1]) == 80
    assert len(held) == 5 * len(documents[1])
    assert 8 <= len(documents[1]) <= 24
    assert train.fingerprint != held.fingerprint != PseudoPairs(file).fingerprint


class Shout:
    """A maker of the user's."""

    def pair(self, passage: Passage, generator: np.random.Generator) -> tuple[str, Passage] | None:
        if int(passage.id or 0) % 2:
            return None
        return passage.text.upper()[:5], Passage(passage.text[5:], passage.title)


class Bad(Shout):
    def pair(self, passage: Passage, generator: np.random.Generator) -> Any:
        return passage.text


def test_a_maker_of_the_user(corpus: Path, tensorizer: Tensorizer) -> None:
    source = PseudoPairs(corpus, kinds=f"{__name__}:Shout")
    assert isinstance(open_tokens(source, tensorizer, SET), PseudoPairs)
    passage = source.row(2).passage
    assert drawn(source, 2).question == passage.text.upper()[:5]
    assert drawn(source, 2).positives[0].text == passage.text[5:]
    assert drawn(source, 3).question  # of crops, since it gives none
    with pytest.raises(ConfigError, match=r"Bad returned '.*expected a question and a dpr.Passage"):
        drawn(PseudoPairs(corpus, kinds={f"{__name__}:Bad": 1}), 2)
    with pytest.raises(ConfigError, match=r"datasets.corpus.pairs=.*does not implement"):
        PseudoPairs(corpus, kinds="pathlib:Path")


def test_every_kind_is_what_it_says(corpus: Path) -> None:
    passage = Passage("Ba be bi. Is it bo? Yes it is bu. Last one e.g. ba.", "Doc > Head of it")
    words = words_of(passage.title.split(), passage.text.split())
    assert words.sentences == [0, 3, 6, 10]
    text, title, rng = passage.text.split(), passage.title.split(), generator_for(1)
    cuts = {kind: [KINDS[kind][0](words, rng) for _ in range(300)] for kind in KINDS}

    def read(cut: Any) -> tuple[str, str]:
        rest = [word for start, end in cut.passage for word in text[start:end]]
        asked = [title[w] for w in cut.title] + [text[w] for w in cut.question]
        return " ".join(asked), " ".join(rest)

    assert {read(cut) for cut in cuts["title"]} == {("Doc > Head of it", passage.text)}
    asked = [read(cut) for cut in cuts["sentence"]]
    whole = "Ba be bi.|Is it bo?|Yes it is bu.|Last one e.g. ba."
    assert {question for question, _ in asked} == set(whole.split("|"))
    assert 10 <= sum(question in rest for question, rest in asked) <= 60
    for question, rest in map(read, cuts["crops"]):
        assert question in passage.text
        assert rest in passage.text
        assert 3 <= len(question.split()) <= 12
        assert len(rest.split()) >= len(text) / 3


def test_words_of_questions_are_dropped(tmp_path: Path) -> None:
    file = write_corpus(tmp_path / "long.jsonl", [{"text": " ".join(WORDS[:60])} for _ in range(200)])
    whole, some = (PseudoPairs(file, kinds="crops", drop_words=share) for share in (0, 0.5))
    pairs = [(drawn(whole, row).question.split(), drawn(some, row).question.split()) for row in range(200)]
    assert all(
        len(kept) > 1 and set(kept) <= set(asked) and sorted(kept, key=asked.index) == kept
        for asked, kept in pairs
    )
    shorter = [len(kept) / len(asked) for asked, kept in pairs if kept != asked]
    assert 0.45 < len(shorter) / 200 < 0.7
    assert 0.45 < sum(shorter) / len(shorter) < 0.65


def test_kinds_are_chosen_by_weight_among_those_that_are_possible() -> None:
    plain, rng = words_of([], "ba be bi".split()), generator_for(2)
    assert {choose(MIXED, plain, rng) for _ in range(100)} == {"crops"}
    assert {choose({"title": 1.0}, plain, rng) for _ in range(10)} == {"crops"}
    titled = words_of(["Bo"], "Ba be. Bi bo.".split())
    drawn_kinds = [choose(MIXED, titled, rng) for _ in range(4000)]
    assert all(abs(drawn_kinds.count(kind) / 4000 - weight) < 0.03 for kind, weight in MIXED.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("crop", "datasets.x.pairs=crop is not a kind of pairs; did you mean crops"),
        (["crops", "nonsense"], "choose one of mixed, crops, sentence"),
        ({"crops": 0}, "datasets.x.pairs.crops=0 is out of range; it must be above 0"),
        ({"crops": True}, "datasets.x.pairs.crops=True is not a number"),
        ([], "names no kind"),
        (3, "datasets.x.pairs=3 is not a kind"),
    ],
)
def test_kinds_that_are_none(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kinds_of(given, setting="datasets.x.pairs")


def test_a_corpus_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no passage whose text has words"):
        PseudoPairs(write_corpus(tmp_path / "empty.jsonl", [{"text": " "}]))
    one = write_corpus(tmp_path / "one.jsonl", [{"text": "ba"}])
    assert PseudoPairs(one)[0].question == "ba"
    with pytest.raises(
        InputError, match=r"held back \(0.1 of the documents of 1 passages\); the corpus needs some dozen"
    ):
        PseudoPairs(one, held_back=0.1, held_only=True)


def test_what_changes_texts_is_cut_from_them(
    corpus: Path, tensorizer: Tensorizer, caplog: pytest.LogCaptureFixture
) -> None:
    source = PseudoPairs(corpus)
    for options, text in (
        (DataSetSettings(normalize=True), {}),
        (DataSetSettings(query_prefix="q: "), {}),
        (SET, {"plain_apostrophes": True}),
        (SET, {"passage_prompt": "p: "}),
        (SET, {"query_prompt": "q: "}),
    ):
        tensorizer.text = TextSettings(**{"plain_apostrophes": False, **text})
        assert open_tokens(source, tensorizer, options) is source


def test_a_tokenizer_that_joins_words_is_given_the_text(corpus: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[UNK]": 0, "[PAD]": 1, "ba": 2, "be": 3, "bi": 4}
    joined = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    joined.pre_tokenizer = pre_tokenizers.Split("X", "removed")  # type: ignore[assignment]
    folder = tmp_path / "joined"
    made = PreTrainedTokenizerFast(tokenizer_object=joined, unk_token="[UNK]", pad_token="[PAD]")
    made.save_pretrained(str(folder))
    made = Tensorizer.load(folder, sequence_length=24)
    made.text = TextSettings(plain_apostrophes=False)
    source = PseudoPairs(corpus)
    assert open_tokens(source, made, SET) is source
