"""``dpr.Retriever`` over a run folder and over passages in memory: scores, filters, additions."""

import datetime
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import pytest

from dpr import BiEncoder, ConfigError, InputError, OutputError, Passage, Retriever
from dpr.core.logs import ProgressBar
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.registry import IndexTexts
from dpr.retrieval.hits import Hits, Place
from dpr.retrieval.sides import Fusion, WordSide
from tests.unit.retrieval.conftest import World, searchable


@pytest.fixture(scope="module")
def model(world: World) -> BiEncoder:
    return world.model


@pytest.fixture(scope="module")
def run_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searchable(world, tmp_path_factory.mktemp("opened") / "run", weight=0.5)


def shown(hits: Hits) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in hits]


def test_a_hit_has_its_texts_rank_and_both_sides_scores(run_folder: Path, world: World) -> None:
    retriever = Retriever.open(run_folder, device="cpu")
    assert repr(retriever) == "Retriever(60 passages, dense or bm25 or hybrid, by default hybrid)"
    hits = retriever.search(world.questions[3].text, k=4)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4] and hits[0].score >= hits[-1].score
    first = next(hit for hit in hits if hit.id == "p003")
    assert (first.title, first.text) == (world.passages[3].title, world.passages[3].text)
    for mode in ("dense", "bm25"):
        alone = {hit.id: hit.score for hit in retriever.search(world.questions[3].text, 60, mode=mode)}
        assert all(getattr(hit, mode) == alone.get(hit.id) for hit in hits)
    assert all(hit.bm25 is None for hit in retriever.search("ka", mode="dense"))


def test_embedding_in_memory_shows_how_far_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(ProgressBar, "advance", lambda self, items, tokens=0: counted.append(items))
    model = world.model
    counted.clear()
    monkeypatch.setattr("dpr.retrieval.dense.default_batch_tokens", lambda device: 40)
    whole = Retriever.build(model, world.passages)
    assert len(counted) > 3 and sum(counted) == len(world.passages)
    monkeypatch.setattr("dpr.retrieval.dense._CHUNK", 7)
    asked = [question.text for question in world.questions]
    found, expected = (one.search(asked) for one in (Retriever.build(model, world.passages), whole))
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in expected]


def test_a_list_of_questions_gives_a_list_and_an_empty_one_nothing(run_folder: Path, world: World) -> None:
    retriever = Retriever.open(run_folder, device="cpu")
    questions = [world.questions[0].text, " ", world.questions[1].text]
    together = retriever.search(questions, 3)
    assert [len(hits) for hits in together] == [3, 0, 3] and retriever.search([]) == []
    for question, hits in zip(questions, together, strict=True):
        alone = retriever.search(question, 3)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in alone], rtol=1e-5)


class Fixed(WordSide):
    """A side that knows its answer."""

    def __init__(self, *ranking: tuple[str, float]) -> None:
        super().__init__(Bm25Index.build(IndexTexts(["a"], ["ka"])))
        self.ranking = list(ranking)

    def retrieve(self, questions: list[str], k: int) -> list[list[tuple[str, float]]]:
        return [self.ranking[:k] for _ in questions]


def test_places_on_both_sides_of_a_hybrid(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, lexical = Fixed(("a", 9.0), ("b", 7.0)), Fixed(("c", 3.0), ("b", 2.0), ("d", 1.0))
    retriever = Retriever.build(None, ["ka no"])
    fusion = retriever.searched.fusion = Fusion(weight=0.5, depth=3)
    monkeypatch.setattr(retriever, "sides", lambda mode: {"dense": dense, "bm25": lexical})
    hits = retriever.search("?", 3)
    assert shown(hits) == fusion.fuse([dense.ranking], [lexical.ranking], 3)[0]
    assert (hits[0].id, hits[0].score, hits[0].sides) == ("a", 0.5, {"dense": Place(1, 9.0), "bm25": None})
    assert {hit.id: hit.sides for hit in hits}["b"] == {"dense": Place(2, 7.0), "bm25": Place(2, 2.0)}
    retriever.searched.fusion = Fusion(weight=0.5, depth=1)
    assert shown(retriever.search("?", 3)) == shown(hits), "as many of each side as are asked for"


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_memory_and_folder_find_the_same(world: World, model: BiEncoder, tmp_path: Path, mode: str) -> None:
    stored = Retriever.build(world.folder / "model", world.passages, folder=tmp_path / "run", mode=mode)
    in_memory = Retriever.build(model, world.passages, mode=mode)
    again = Retriever.open(tmp_path / "run")
    assert stored.mode == in_memory.mode == again.mode == mode
    for question in world.questions[:3]:
        ours, theirs = in_memory.search(question.text, 5), stored.search(question.text, 5)
        assert [hit.passage for hit in ours] == [hit.passage for hit in theirs]
        np.testing.assert_allclose([hit.score for hit in ours], [hit.score for hit in theirs], rtol=1e-5)
        assert shown(again.search(question.text, 5)) == shown(theirs)


def test_texts_dictionaries_records_files_and_generators_are_passages(world: World, tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "title": "T", "text": "ka no", "year": 2020},
        {"text": "vi po", "metadata": {"year": 2021}},
    ]
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps(row | {"_id": row.get("_id", "b")}) + "\n" for row in rows)
    )
    for given, ids in (
        (["ka no", "vi po"], ["0", "1"]),
        ((text for text in ("ka no", "vi po")), ["0", "1"]),
        (rows, ["a", "1"]),
        ([Passage("ka no", "T", "x"), "vi po"], ["x", "1"]),
        (tmp_path / "c.jsonl", ["a", "b"]),
        ({"a": rows[0] | {"_id": "another"}, 5: "vi po"}, ["a", "5"]),
        (str(world.folder / "corpus.tsv"), [str(passage.id) for passage in world.passages]),
    ):
        retriever = Retriever.build("bm25", given)
        assert sorted(retriever.get(ids)) == sorted(ids) and len(retriever) == len(ids)
        assert (5 in retriever) == (np.int64(5) in retriever) == ("5" in ids) and None not in retriever


def tables(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same rows in every kind of table."""
    dataset = datasets.Dataset.from_list(rows)
    return {
        "pandas": pandas.DataFrame(rows),
        "pyarrow": pyarrow.Table.from_pylist(rows),
        "datasets": dataset,
        "tensors": dataset.with_format("numpy"),
        "splits": datasets.DatasetDict({"train": dataset}),
    }


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "datasets", "tensors", "splits"])
def test_tables_are_read_by_their_columns_or_refused(model: BiEncoder, kind: str) -> None:
    rows = [{"id": "a", "title": "T", "text": "ka no", "year": 2020}, {"id": "b", "text": "vi po"}]
    table = tables(rows)[kind]
    found = Retriever.build(model, ["ka"])
    if kind != "splits":
        retriever = Retriever.build(model, table)
        assert retriever.get(["a", "b"]) == {"a": Passage("ka no", "T", "a"), "b": Passage("vi po", "", "b")}
        assert [hit.id for hit in retriever.search("ka", where={"year": 2020})] == ["a"]
        np.testing.assert_array_equal(model.encode_passages(table), model.encode_passages(rows))
        texts = [row["text"] for row in rows]
        np.testing.assert_array_equal(model.encode_questions(table), model.encode_questions(texts))
    else:
        with pytest.raises(InputError, match="passage train: of type Dataset"):
            Retriever.build(model, table)
    for asked in (table, {"q1": "ka"}):
        for call in (
            found.search,
            found.get,
            lambda given: found.search("ka", ids=given),
            lambda given: model.similarity(given, given),
        ):
            with pytest.raises((ConfigError, TypeError)) as error:
                call(asked)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        (["a", 3], "passage 1: the number 3, expected a text, a dictionary with 'text', or a Passage"),
        ([{"title": "a"}], "passage 0: no text among the keys title, expected one of text, contents"),
        ([{"text": "a", "id": 1.5}], "passage 0: id is the number 1.5"),
        ([{"text": "a", "id": "x"}, {"text": "b", "id": "x"}], "passage 1: the id 'x' occurs twice"),
        ([], "there are no passages"),
        ({"id": "a", "text": "ka"}, "passages is an object, expected a file, or a list"),
        ({"docid": "a", "contents": "ka"}, "passages is an object, expected a file, or a list"),
        (3, "passages is the number 3, expected a file, or a list"),
        ("no/such.tsv", "no/such.tsv: there is no such file; passages are a file, or a list"),
    ],
)
def test_a_wrong_passage_is_one_sentence(passages: Any, message: str, tmp_path: Path) -> None:
    for folder in (None, tmp_path / "run"):
        with pytest.raises(InputError) as error:
            Retriever.build(None, passages, folder=folder)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_wrong_questions_and_modes_are_one_sentence(model: BiEncoder) -> None:
    retriever, search = Retriever.build(model, ["ka no"]), Retriever.build(None, ["ka no"]).search
    for call, message in (
        (lambda: search(["ka", 3]), "search() got ['ka', 3] for a question"),
        (lambda: search("ka", 0), "k=0; give a number of passages"),
        (lambda: search("ka", mode="dense"), "mode=dense needs a model and its vectors"),
        (lambda: search("ka", mode="words"), "mode='words' is not known; choose dense, bm25 or hybrid"),
        (lambda: search("ka", where={"year": None}), "where: year=None is not a text"),
        (lambda: search("ka", where="year=2000"), "where is of type str; give values by field"),
        (lambda: search("ka", ids="p1"), "ids='p1' of type str; give a list of texts"),
        (lambda: retriever.search("ka", mode="hybrid", weight="0.5"), "weight='0.5': give a share"),
        (lambda: retriever.search("ka", weight=0.5), "search with mode='hybrid'"),
        (lambda: Retriever.build(3, ["ka"]), "model is of type int; give a BiEncoder, the folder of one"),
        (lambda: Retriever.build(model, ["ka"], indexer="hnsw32"), "name one with folder="),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert message in str(error.value)


@pytest.mark.parametrize("is_stored", [False, True])
def test_where_and_ids_search_a_part_exactly(
    world: World, model: BiEncoder, tmp_path: Path, is_stored: bool
) -> None:
    rows = [
        {"id": one.id, "text": one.text, "even": n % 2 == 0, "year": 2000 + n % 3, "kind": "xy"[n % 2]}
        for n, one in enumerate(world.passages)
    ]
    exact = retriever = Retriever.build(model, rows)
    if is_stored:
        retriever = Retriever.build(model, rows, folder=tmp_path / "run", indexer="hnsw32")

    def found(k: int = 60, **options: Any) -> list[str]:
        return [hit.id for hit in retriever.search("ka no vi", k, **options)]

    for mode in ("dense", "bm25", "hybrid"):
        everything = [hit.id for hit in exact.search("ka no vi", len(rows), mode=mode)]
        for where, numbers in (
            ({"even": True}, range(0, 60, 2)),
            ({"year": [2000, 2002]}, [n for n in range(60) if n % 3 != 1]),
            ({"kind": "y", "year": 2001.0}, [n for n in range(60) if n % 2 and n % 3 == 1]),
        ):
            expected = [key for key in everything if int(key[1:]) in numbers]
            if mode == "hybrid":  # its order depends on the lists that are fused
                assert {*found(mode=mode, where=where)} == {*expected}
            else:
                assert found(7, mode=mode, where=where) == expected[:7]
        both = [key for key in everything if key in ("p003", "p005")]
        assert {*found(mode=mode, ids=["p003", "p005"], where={"even": False})} == {*both}
        assert found(mode=mode, ids=[]) == []
    assert found(np.int64(3), ids=np.array(["p003", "p005"])) == found(3, ids=["p003", "p005"])
    assert found(where={"year": 1999}) == []
    with pytest.raises(InputError, match="year is the number 2000"):
        found(where={"year": "2000"})
    with pytest.raises(InputError, match="no passage has a value in the field 'yaer'"):
        found(where={"yaer": 2000})


@pytest.mark.parametrize("is_stored", [False, True])
def test_passages_are_added_and_stay(world: World, model: BiEncoder, tmp_path: Path, is_stored: bool) -> None:
    folder = tmp_path / "run" if is_stored else None
    first, rest = world.passages[:30], world.passages[30:]
    new = {"id": "new", "text": "zebra crossing"}
    kind = "hnsw32" if is_stored else "exact"
    retriever = Retriever.build(model, first, folder=folder, mode="hybrid", indexer=kind)
    assert len(retriever.search("zebra", mode="bm25")) == 0
    retriever.add([new | {"colour": "black"}, *rest])
    whole = Retriever.build(model, [*first, new, *rest], mode="hybrid")
    for found in [retriever, *([Retriever.open(folder)] if folder else [])]:
        assert [hit.id for hit in found.search("zebra", mode="bm25")] == ["new"]
        assert [hit.id for hit in found.search("ka", where={"colour": "black"})] == ["new"]
        by_words = [one.search(world.questions[2].text, 5, mode="bm25") for one in (found, whole)]
        assert shown(by_words[0]) == shown(by_words[1])
        with pytest.raises(InputError, match=r"the id '\w+' is already in the corpus"):
            found.add([Passage("x", "", "new")])
        assert len(found) == 61
    if folder:
        assert not list(folder.glob("added2*"))
        assert len(list(folder.glob("index*"))) == len(list(folder.glob("bm25*"))) == 1


def test_passages_are_added_again_and_again_to_a_folder_named_from_here(
    world: World, model: BiEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    retriever = Retriever.build(model, world.passages[:5], folder="run", mode="hybrid")
    for number, word in enumerate(("zebra", "okapi"), 1):
        retriever.add([{"id": word, "text": f"{word} crossing"}])
        assert (len(retriever), len(list(Path("run").glob("bm25*")))) == (5 + number, 1)
    for found in (retriever, Retriever.open("run")):
        assert [found.search(word, mode="bm25")[0].id for word in ("zebra", "okapi")] == ["zebra", "okapi"]


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_value_of_another_type_than_its_fields_is_refused_when_it_comes_in(
    model: BiEncoder, tmp_path: Path, is_stored: bool
) -> None:
    rows = [
        {"text": "ka no", "year": None, "tags": ["x"]},
        {"text": "vi po", "year": 2020, "new": True, "language": "en"},
    ]
    retriever = Retriever.build(model, rows, folder=tmp_path / "run" if is_stored else None)
    retriever.add([{"text": "ka", "metadata": {"year": 2021.5}, "tags": [], "new": None}])
    for name, value, message in (
        ("year", "2021", "the string '2021', expected float"),
        ("year", True, "the boolean True, expected float"),
        ("year", [2021, "2022"], "the string '2022', expected float"),
        ("new", 1, "the number 1, expected bool"),
        ("language", 3, "the number 3, expected text"),
    ):
        wrong = [{"text": "ni", "fresh": 1}, {"text": "no", "metadata": {name: value}}]
        with pytest.raises(InputError) as error:
            retriever.add(wrong)
        assert f"passage 1: {name} is {message}" in str(error.value)
        with pytest.raises(InputError, match=f"passage 3: {name} is"):
            Retriever.build(model, [*rows, *wrong], folder=tmp_path / "other" if is_stored else None)
        assert len(retriever) == 3 and retriever.get(["3", "4"]) == {}
    retriever.add([{"text": "ni", "fresh": "text"}])  # of what was refused, nothing is remembered
    assert {hit.id for hit in retriever.search("ka", where={"year": [2020, 2021.5]})} == {"1", "2"}
    (tmp_path / "c.jsonl").write_text(
        '{"_id": "a", "text": "ka", "n": 1}\n{"_id": "b", "text": "no", "n": "1"}\n'
    )
    with pytest.raises(InputError, match=r"c\.jsonl:2: n is the string '1', expected float"):
        Retriever.build(model, tmp_path / "c.jsonl", folder=tmp_path / "file" if is_stored else None)


@pytest.mark.parametrize("is_stored", [False, True])
def test_fields_are_as_pandas_and_numpy_give_them(tmp_path: Path, is_stored: bool) -> None:
    """As in the records of a frame: NaN, also inside lists, means no value. Dates become text."""
    rows: list[dict[str, Any]] = [
        {
            "text": "ka no",
            "year": np.int64(2020),
            "score": float("nan"),
            "marks": [1.0, float("nan")],
            "tags": (),
            "date": datetime.date(2020, 2, 29),
            "of": {"pages": np.int32(3), "price": [float("inf"), Decimal("1.50")]},
        },
        {
            "text": "vi po",
            "year": np.int64(2021),
            "score": np.float32(0.5),
            "marks": [],
            "tags": np.array(["x"]),
            "date": pandas.NaT,
            "of": None,
        },
    ]
    of = {"pages": 3, "price": [None, "1.50"]}
    expected = [
        {"year": 2020, "score": None, "marks": [1.0, None], "tags": [], "date": "2020-02-29", "of": of},
        {"year": 2021, "score": 0.5, "marks": [], "tags": ["x"], "date": None, "of": None},
    ]
    fields = [{name: value for name, value in row.items() if name != "text"} for row in rows]
    passages = [Passage(row["text"], metadata=stated) for row, stated in zip(rows, fields, strict=True)]
    for number, given in enumerate((rows, pandas.DataFrame(rows), passages)):
        retriever = Retriever.build(None, given, folder=tmp_path / f"run{number}" if is_stored else None)
        retriever.add([{"text": "so", "marks": [float("nan"), 3]}])
        assert [passage.metadata for passage in retriever] == [*expected, {"marks": [None, 3]}]
        for where, ids in (
            ({"year": np.int64(2020)}, ["0"]),
            ({"year": {"gte": np.int64(2021)}}, ["1"]),
            ({"year": (2020, 2021), "score": np.float32(0.5)}, ["1"]),
            ({"marks": {"gt": 2}}, ["2"]),
            ({"marks": {"lt": 1}}, []),
            ({"tags": "x"}, ["1"]),
            ({"year": {"any": (2020, 1999)}}, ["0"]),
            ({"year": {"any": np.array([2021])}}, ["1"]),
            ({"date": {"lt": datetime.date(2020, 3, 1)}}, ["0"]),
        ):
            assert [hit.id for hit in retriever.search("ka po so", where=where)] == ids, where
        with pytest.raises(InputError, match=r"year is the number 2020, expected text, .*of where"):
            retriever.search("ka", where={"year": "2020"})
        with pytest.raises(InputError, match="passage 0: tags is the number 3, expected text"):
            retriever.add([{"text": "so", "tags": 3}])
        with pytest.raises(InputError, match="passage 0: marks is the string 'x', expected float"):
            retriever.add([{"text": "so", "marks": "x"}])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/run.*cannot be written"):
        Retriever.build(None, ["ka"], folder=tmp_path / "file" / "run")


def test_a_folder_of_other_passages_or_of_another_model_is_left_as_it_is(
    world: World, model: BiEncoder, tmp_path: Path
) -> None:
    Retriever.build(model, world.passages[:5], folder=tmp_path / "run")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    with pytest.raises(InputError, match="holds other passages"):
        Retriever.build(model, world.passages[:6], folder=tmp_path / "run")
    other = BiEncoder.load(world.folder / "model")
    next(other.parameters()).data += 1
    with pytest.raises(InputError, match="holds another model"):
        Retriever.build(other, world.passages[:5], folder=tmp_path / "run")
    Retriever.build(model, world.passages[:5], folder=tmp_path / "run").add(["more"])
    with pytest.raises(InputError, match=r"search\.json: names other passages"):
        Retriever.build(model, world.passages[:5], folder=tmp_path / "run")
    assert all(
        path.read_bytes() == data for path, data in before.items() if not path.name.startswith("search.json")
    )


def test_a_run_folder_without_search_settings_is_searched_by_its_own_vectors(
    world: World, tmp_path: Path
) -> None:
    for name in ("vectors_0", "vectors_1"):
        shutil.copytree(world.folder / name, tmp_path / "run" / name)
    retriever = Retriever.open(
        tmp_path / "run", model=world.path("model"), corpus=world.folder / "corpus.tsv", device="cpu"
    )
    assert (retriever.mode, len(retriever)) == ("dense", 60)
    with pytest.raises(InputError, match=r"no search\.json"):
        Retriever.open(tmp_path / "run")
