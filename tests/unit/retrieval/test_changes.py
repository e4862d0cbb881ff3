"""Passages of a ``dpr.Retriever`` come and go: fields, filters, changes in memory and in folders, several processes."""

import json
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from dpr import BiEncoder, ConfigError, InputError, Passage, Retriever
from dpr.retrieval import stored_search
from tests.helpers.tiny import sentence
from tests.unit.retrieval.conftest import World

ROWS = [
    {"id": "a", "text": "ka no", "year": 1990, "tags": ["x", "y"], "language": "en"},
    {"id": "b", "text": "ka vi", "year": 2000, "tags": ["y"]},
    {"id": "c", "text": "ka po", "year": 2010, "tags": "x", "language": "fr"},
    {"id": "d", "text": "ka ni"},
]


@pytest.fixture(scope="module")
def model(world: World) -> BiEncoder:
    return world.model


@pytest.mark.parametrize("is_stored", [False, True])
def test_hits_carry_their_fields_and_filters_know_ranges_lists_and_not(
    model: BiEncoder, tmp_path: Path, is_stored: bool
) -> None:
    retriever = Retriever.build(model, ROWS, folder=tmp_path / "run" if is_stored else None, mode="bm25")
    hits = {hit.id: hit.metadata for hit in retriever.search("ka")}
    assert hits["a"] == {"year": 1990, "tags": ["x", "y"], "language": "en"} and hits["d"] == {}
    retriever.add([{"id": "e", "text": "ka ka", "year": 2020, "tags": ["x", "z"], "language": "en"}])
    for where, ids in (
        ({"year": {"gte": 2000}}, "bce"),
        ({"year": {"gt": 1990, "lt": 2020}}, "bc"),
        ({"year": {"lte": 1990}}, "a"),
        ({"year": {"not": 2000}}, "acde"),
        ({"year": {"not": {"gte": 2000, "lt": 2015}}}, "ade"),
        ({"year": {"gte": 1990}, "language": {"not": "en"}}, "bc"),
        ({"language": {"gte": "f"}}, "c"),
        ({"tags": "x"}, "ace"),
        ({"tags": ["y", "z"]}, "abe"),
        ({"tags": {"any": ["y", "z"], "not": "x"}}, "b"),
        ({"tags": {"all": ["x", "y"]}}, "a"),
    ):
        assert {hit.id for hit in retriever.search("ka", where=where)} == {*ids}, where
    for where, message in (
        ({"year": {"$gte": 2000}}, "the operators gt, gte, lt, lte, any, all, not"),
        ({"year": {"gte": "2000"}}, "expected text"),
        ({"year": {"gte": {"lt": 3}}}, "expected float"),
    ):
        with pytest.raises(InputError, match=message):
            retriever.search("ka", where=where)


@pytest.mark.parametrize("kind", ["memory", "exact", "hnsw32"])
def test_changes_lead_to_what_a_new_build_finds(
    world: World, model: BiEncoder, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_search, "_LARGE_JOURNAL", 5000)
    folder = None if kind == "memory" else tmp_path / "run"
    rows = {
        str(one.id): {"id": one.id, "text": one.text, "even": n % 2 == 0}
        for n, one in enumerate(world.passages)
    }
    options = {} if kind == "memory" else {"indexer": kind}
    retriever = Retriever.build(model, rows.values(), folder=folder, mode="hybrid", **options)
    retriever.search("ka", where={"even": True})
    rng = random.Random(1)
    for number in range(40):
        key = rng.choice(list(rows))
        new = {"id": f"n{number}", "text": sentence(rng, 9), "even": True}
        if number % 3 == 0:
            retriever.delete(key)
            del rows[key]
        elif number % 3 == 1:
            retriever.update([new | {"id": key}])
            rows[key] = new | {"id": key}
        else:
            retriever.add([new])
            rows[new["id"]] = new
    fresh = Retriever.build(model, rows.values())
    for found in (retriever, *([Retriever.open(folder)] if folder else [])):
        assert len(found) == len(rows) and {str(one.id) for one in found} == rows.keys()
        assert "n2" in found and "n0" not in found and 3 not in found
        for mode in ("bm25",) if kind == "hnsw32" else ("dense", "bm25", "hybrid"):
            for options in ({}, {"where": {"even": True}}):
                for question in world.questions[:4]:
                    ours = found.search(question.text, 70, mode=mode, **options)
                    theirs = fresh.search(question.text, 70, mode=mode, **options)
                    assert [hit.passage for hit in ours] == [hit.passage for hit in theirs]
                    for mine, other in zip(ours, theirs, strict=True):
                        assert mine.score == pytest.approx(other.score, abs=1e-6)
        assert {hit.id for hit in found.search("ka", 100, mode="dense")} == rows.keys()


def test_a_change_is_made_whole_or_not_at_all(model: BiEncoder, tmp_path: Path) -> None:
    retriever = Retriever.build(model, ROWS)
    for change, message in (
        (
            lambda: retriever.add([{"id": "z", "text": "no"}, {"id": "a", "text": "no"}]),
            "'a' is already in the",
        ),
        (lambda: retriever.update([ROWS[0], {"id": "z", "text": "no"}]), "'z' is not in the corpus"),
        (lambda: retriever.update(["no"]), "has no id"),
        (lambda: retriever.delete(["a", "z"]), "'z' is not in the corpus"),
        (lambda: retriever.add([]), "there are no passages"),
        (lambda: retriever.update([ROWS[0] | {"year": "1990"}]), "year is the string '1990', expected float"),
    ):
        with pytest.raises(InputError, match=message):
            change()
    assert {str(one.id) for one in retriever} == set("abcd") and retriever.get(["a"])["a"].text == "ka no"
    retriever.delete("b")
    retriever.add(["without an id"])
    assert {str(one.id) for one in retriever} == {"a", "c", "d", "4"}
    retriever.delete([])
    (tmp_path / "corpus.tsv").write_text("id\ttext\n1\tka\n")
    with pytest.raises(ConfigError, match=r"Retriever\.build makes both"):
        Retriever.open(corpus=tmp_path / "corpus.tsv").delete("1")


def test_another_process_sees_the_changes(
    model: BiEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Retriever.build(model, ROWS, folder=tmp_path / "run")
    theirs, late = Retriever.open(tmp_path / "run"), Retriever.open(tmp_path / "run")
    ours.add([{"id": "e", "text": "zebra", "year": 2020}])
    assert theirs.search("zebra", mode="bm25")[0].metadata == {"year": 2020}
    theirs.delete(["a", "e"])
    ours.update([{"id": "b", "text": "okapi"}])
    assert (
        {hit.id for hit in theirs.search("ka", 9)} == {hit.id for hit in ours.search("ka", 9)} == set("bcd")
    )
    assert not theirs.search("zebra", mode="bm25") and theirs.search("okapi", mode="bm25")[0].id == "b"
    with pytest.raises(InputError, match=r"search\.json: names other passages"):
        Retriever.build(model, ROWS, folder=tmp_path / "run")
    (journal,) = (tmp_path / "run").glob("changes-*.jsonl")
    monkeypatch.setattr(ours.searched, "_most_bytes", 10)
    size = journal.stat().st_size
    ours.delete(["d"])  # joins the changes first
    assert journal.stat().st_size < size and len(Retriever.open(tmp_path / "run")) == 2
    assert not ours.searched.journal.has_news()  # its own changes are not read again
    theirs.mode = "bm25"
    assert {hit.id for hit in theirs.search("ka okapi", 9)} == set("bc") and len(theirs) == 2
    theirs.add(["ka ka"])  # its number is not that of a passage that was added and deleted
    assert {str(one.id) for one in ours} == {"b", "c", "6"} == {hit.id for hit in ours.search("ka okapi")}
    assert late.search("okapi", mode="bm25")[0].id == "b"
    journal.write_bytes(journal.read_bytes().replace(b"okapi", b"okapj"))
    with pytest.raises(InputError, match="content has changed"):
        Retriever.open(tmp_path / "run")


def test_changes_that_are_joined_while_another_process_looks_are_taken_up(tmp_path: Path) -> None:
    ours = Retriever.build(None, ROWS, folder=tmp_path / "run")
    theirs = Retriever.open(tmp_path / "run")
    ours.add([{"id": "e", "text": "zebra"}])
    assert theirs.search("zebra")
    journal: Any = theirs.searched.journal
    joined = journal.was_rewritten

    def was_rewritten() -> bool:
        before: bool = joined()
        ours.searched._most_bytes = 10
        ours.add(["okapi"])  # joins the changes first
        journal.was_rewritten = joined
        return before

    journal.was_rewritten = was_rewritten
    ours.delete("e")
    theirs.search("ka")
    assert theirs.search("okapi") and not theirs.search("zebra") and len(theirs) == 5


def test_damage_among_the_changes_is_reported_until_it_is_mended(tmp_path: Path) -> None:
    """Otherwise a search would leave out what follows it, and the next change would delete that."""
    ours = Retriever.build(None, ROWS, folder=tmp_path / "run")
    theirs = Retriever.open(tmp_path / "run")
    theirs.add(["okapi"])
    theirs.add(["zebra"])
    (journal,) = (tmp_path / "run").glob("changes-*")
    content = journal.read_bytes()
    journal.write_bytes(damaged := content.replace(b"okapi", b"okapj"))
    for call in (ours.search, ours.search, lambda word: ours.add([word])):
        with pytest.raises(InputError, match="content has changed"):
            call("zebra")
    assert journal.read_bytes() == damaged
    journal.write_bytes(content)
    assert ours.search("okapi") and ours.search("zebra")


def test_a_field_that_has_got_another_kind_is_read_again() -> None:
    retriever = Retriever.build(None, ROWS)
    with pytest.raises(InputError, match="no passage has a value in the field 'note'"):
        retriever.search("ka", where={"note": "x"})
    retriever.add([{"id": "e", "text": "ka", "note": 5}])
    with pytest.raises(InputError, match="'e': note is the number 5, expected text"):
        retriever.search("ka", where={"note": "x"})


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_killed_change_leaves_the_old_or_the_new_state(
    model: BiEncoder, tmp_path: Path, share: float
) -> None:
    """The process is killed when this share of the change is in the file."""
    folder = tmp_path / "run"
    Retriever.build(None, ROWS, folder=folder).add([{"id": "e", "text": "zebra"}])
    (journal,) = folder.glob("changes-*.jsonl")
    size = journal.stat().st_size
    if (pid := os.fork()) == 0:

        def kill(descriptor: int) -> None:
            os.truncate(journal, int(size + share * (journal.stat().st_size - size)))
            os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = kill  # type: ignore[assignment]
        Retriever.open(folder).update([{"id": "e", "text": "okapi"}])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    word, other = ("okapi", "zebra") if share == 1.0 else ("zebra", "okapi")
    found = Retriever.open(folder)
    assert [hit.id for hit in found.search(word)] == ["e"] and not found.search(other)
    assert not found.searched.journal.has_news()  # a line that was cut off is looked at once
    found.add([{"id": "f", "text": "quagga"}])
    assert [hit.id for hit in Retriever.open(folder).search("quagga")] == ["f"] and len(found) == 6


def test_many_threads_search_while_passages_come_and_go(model: BiEncoder) -> None:
    retriever = Retriever.build(model, ROWS, mode="hybrid")
    failures: list[Any] = []
    is_done = threading.Event()

    def search() -> None:
        try:
            while not is_done.is_set():
                hits = retriever.search("ka no", 50, where={"year": {"gte": 1990}})
                assert all(hit.text for hit in hits) and {"a", "b", "c"} <= {hit.id for hit in hits}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(20):
        retriever.add([{"id": f"n{number}", "text": "ka", "year": 2000}])
        retriever.delete(f"n{number}")
    is_done.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_index_of_words_of_an_earlier_version_can_change(tmp_path: Path) -> None:
    retriever = Retriever.build(None, ROWS, folder=tmp_path / "run")
    retriever.index("bm25").frequencies = None  # type: ignore[attr-defined]
    retriever.add([{"id": "e", "text": "ka zebra"}])
    fresh = Retriever.build(None, [*ROWS, {"id": "e", "text": "ka zebra"}])
    for found in (retriever, Retriever.open(tmp_path / "run")):
        for question in ("ka no", "zebra"):
            hits = [[(hit.id, hit.score) for hit in one.search(question)] for one in (found, fresh)]
            assert hits[0] == hits[1]
    record = json.loads((tmp_path / "run" / "corpus.jsonl").read_text().splitlines()[0])
    assert record["metadata"]["year"] == 1990
    assert Passage("x", metadata={"a": 1}) == Passage("x")
