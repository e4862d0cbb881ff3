"""``dpr search``: a run folder answers by itself, also after it was moved."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpr.cli.main import main as dpr
from dpr.core.errors import DprError, InputError
from dpr.core.records import Origin, Passage
from dpr.data.text import QuestionForm
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.jobs.search import format_hit
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.hits import Hit, Place, QuestionWords
from dpr.retrieval.passages import PassageLookup
from dpr.retrieval.retriever import Retriever
from dpr.retrieval.search_json import SearchSettings
from dpr.retrieval.stored_search import search_settings
from tests.helpers.jobs import retrieve, verify
from tests.helpers.patience import patient
from tests.unit.retrieval.conftest import World, searchable


@pytest.fixture
def run_folder(world: World, tmp_path: Path) -> Path:
    return searchable(world, tmp_path / "run", weight=0)


def main(arguments: list[str]) -> int:
    return dpr(["search", *arguments])


def shown_ids(output: str) -> list[str]:
    return [line.rpartition("[")[2].rstrip("]") for line in output.splitlines() if line.endswith("]")]


def test_a_moved_folder_still_answers(
    run_folder: Path, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(tmp_path) not in (run_folder / "search.json").read_text(), "paths are relative"
    moved = run_folder.rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main([str(moved), world.questions[3].text, "--top", "2"]) == 0
    output = capsys.readouterr().out
    assert shown_ids(output)[0] == "p003" and len(shown_ids(output)) == 2
    assert world.passages[3].title in output and world.passages[3].text[:20] in output


def test_without_a_question_it_reads_them_one_by_one(
    run_folder: Path, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{world.questions[1].text}\n{world.questions[2].text}\n"))
    capsys.readouterr()
    assert main([str(run_folder), "-k", "1"]) == 0
    assert shown_ids(capsys.readouterr().out) == ["p001", "p002"]


def test_a_search_by_words_imports_no_library_of_models(world: World) -> None:
    program = (
        "import sys; from dpr.cli.main import main; main(sys.argv[1:])\n"
        "print({'torch', 'transformers', 'pyarrow', 'datasets', 'pandas'} & set(sys.modules), file=sys.stderr)"
    )
    command = ["search", "--corpus", world.path("corpus.tsv"), world.questions[7].text]
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=patient(60)
    )
    assert "[p007]" in done.stdout and done.stderr.splitlines()[-1] == "set()"


def test_a_corpus_alone_is_searched_by_words(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--corpus", world.path("corpus.tsv"), world.questions[7].text, "-k", "1"]) == 0
    assert shown_ids(capsys.readouterr().out) == ["p007"]
    assert main(["--corpus", world.path("corpus.tsv"), "zebra"]) == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_a_question_of_something_else_is_said_to_have_no_answer_here(
    run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = f"which zebra ate the unicorn {world.passages[7].text.split()[0]}"
    for mode in ("bm25", "hybrid"):
        assert main([str(run_folder), foreign, "--mode", mode, "-k", "1"]) == 0
        first, second, *_ = capsys.readouterr().out.splitlines()
        assert first == "no passage seems to answer this question; nearest passages:" and second.startswith(
            " 1."
        )
    assert main([str(run_folder), world.questions[7].text, "-k", "1"]) == 0
    assert capsys.readouterr().out.startswith(" 1.")
    retriever = Retriever.open(run_folder, device="cpu")
    found = retriever.search([foreign, "", world.questions[7].text, "is it?"], mode="bm25")
    assert [hits.seems_unanswered for hits in found] == [True, False, False, False]
    assert [hits.question for hits in found] == [foreign, "", world.questions[7].text, "is it?"]
    assert not retriever.search(foreign, mode="dense").seems_unanswered, "words tell, vectors do not"


@pytest.mark.parametrize(
    ("given", "mode"),
    [("--model model", "dense"), ("--vectors vectors_0", "dense"), ("--mode hybrid --model model", "hybrid")],
)
def test_what_lacks_a_model_or_vectors_is_not_searched_by_words_instead(
    world: World, given: str, mode: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    assert main(["--corpus", "corpus.tsv", *given.split(), "ba be"]) == 2
    assert f"mode={mode} needs a model and its vectors of the passages" in capsys.readouterr().err


def test_a_question_after_vectors_is_the_question(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--corpus", world.path("corpus.tsv"), "--model", world.path("model"), "--device", "cpu"]
    vectors = ["--vectors", world.path("vectors_*")]
    assert main([*named, "ba be", *vectors]) == 0
    before = capsys.readouterr().out
    assert main([*named, *vectors, "ba be"]) == 0
    assert capsys.readouterr().out == before


def test_search_settings_survive_writing_and_reading(tmp_path: Path) -> None:
    settings = SearchSettings(
        model_file=str(tmp_path / "run" / "model"),
        encoded_ctx_files=[str(tmp_path / "vectors_*")],
        passages=[PassageSource(tmp_path / "corpus.tsv", "c", title_col=-1, id_prefix="w:", normalize=True)],
        index_path=str(tmp_path / "index"),
        hybrid="linear",
        hybrid_weight=0.25,
        form=QuestionForm(prefix="[Q]", suffix="?", selector=3, encoder_type="ctx"),
    )
    settings.write(tmp_path / "run")
    assert SearchSettings.read(tmp_path / "run") == settings


ODD = [None, -1, True, "a\0b", "\ud800", "", [5], {"kind": 3}, 10**400]


def places_of(value: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    yield at
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_of(item, (*at, key))


def test_search_settings_of_wrong_types_are_one_line(
    run_folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value in turn is replaced by values of other types: an answer, or one line and no traceback."""
    model = world.model
    known, load = str(run_folder / "model"), BiEncoder.load
    monkeypatch.setattr(BiEncoder, "load", lambda path, **how: model if path == known else load(path, **how))
    stored = json.loads((run_folder / "search.json").read_text())
    (run_folder / "search.json.sha256").unlink()
    refused, message, tracebacks = 0, "", []
    for number, place in enumerate(place for place in places_of(stored) if place):
        for odd in ODD[number % 3 :: 3]:
            changed = json.loads(json.dumps(stored))
            holder = changed
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = odd
            (run_folder / "search.json").write_text(json.dumps(changed))
            try:
                Retriever.open(run_folder, device="cpu").search("anything", 1)
            except DprError as error:
                refused, message = refused + 1, message + str(error)
            except Exception as error:
                tracebacks.append(f"{place} = {odd!r}: {type(error).__name__}: {error}")
    assert not tracebacks, "\n".join(tracebacks)
    assert refused > 40
    assert "\n" not in message


@pytest.mark.parametrize("pattern", ["/**/*", "**/*", "**", "../*/vectors_0", "x=/**/*"])
@pytest.mark.parametrize("key", ["encoded_ctx_files", "model_file", "pretrained_model_cfg"])
def test_a_folder_cannot_have_a_machine_walked(key: str, pattern: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    stated = {"schema": 1, key: [pattern] if key == "encoded_ctx_files" else pattern}
    (tmp_path / "run" / "search.json").write_text(json.dumps(stated))
    with pytest.raises(InputError, match=r"search\.json: names .* looked for in many folders"):
        search_settings(tmp_path / "run")


def test_vectors_named_by_a_pattern_of_folders_are_written_by_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "vectors" / name / "v_0").mkdir(parents=True)
    patterns = [str(tmp_path / "vectors" / "*" / "v_*"), str(tmp_path / "vectors" / "a" / "v_*")]
    SearchSettings(encoded_ctx_files=patterns).write(tmp_path / "run")
    named = [str(tmp_path / "vectors" / name / "v_0") for name in ("a", "b")]
    assert SearchSettings.read(tmp_path / "run").encoded_ctx_files == [*named, patterns[1]]


def test_changed_search_settings_are_noticed(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run_folder / "search.json"
    whole = file.read_text()
    try:
        file.write_text(whole.replace('"hybrid_weight": 0', '"hybrid_weight": 1'))
        assert main([str(run_folder), "anything"]) == 3
        assert "search.json: content has changed" in capsys.readouterr().err
        assert verify([str(run_folder)]) == 3
    finally:
        file.write_text(whole)
    assert verify([str(file)]) == 0


def test_what_retrieve_indexed_with_its_settings_is_searched_so(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [f"qa_dataset={world.path('questions.jsonl')}", f"ctx_datasets=[{world.path('corpus.tsv')}]"]
    bm25 = ["indexer=bm25", f"bm25_index_path={tmp_path / 'words'}", "indexer.k1=1.7", "indexer.b=0.9"]
    graph = [f"model_file={world.path('model')}", f"encoded_ctx_files=[{world.path('vectors_*')}]"]
    graph += ["indexer=hnsw", "indexer.store_n=4", "indexer.ef_search=3", f"index_path={tmp_path / 'graph'}"]
    for kind in (bm25, graph):
        assert retrieve([*line, *kind, f"search_folder={tmp_path}"]) == 0
        capsys.readouterr()
        assert main([str(tmp_path), world.questions[0].text]) == 0
        assert "has no effect" not in capsys.readouterr().err
    assert search_settings(tmp_path).indexer.ef_search == 3


@pytest.mark.parametrize("origin", [None, Origin("a\x1bb.md\n\u202e", "\x9b2J", 3)])
def test_a_corpus_cannot_drive_the_terminal(origin: Origin | None) -> None:
    hostile = Passage("bad \x1b[2J text\n\n" + "word " * 200, "ti\x07tle", "i\x1bd", origin=origin)
    hit = Hit(1, 0.5, hostile, {"dense": Place(1, 0.5), "bm25": None}, Path("a\x1bb.tsv"))
    shown = format_hit(hit, question="bad \x1b[2J word", width=60)
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert len(shown.splitlines()) == 6
    assert shown.splitlines()[3].endswith("...")
    assert "dense #1 (0.5) | BM25 none" in shown


def test_a_hit_says_where_it_is_from_and_why(
    run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    question = world.questions[3].text
    assert main([str(run_folder), question, "-k", "1", "--mode", "hybrid"]) == 0
    shown = capsys.readouterr().out
    assert "corpus.tsv | dense #" in shown and "BM25 #1 (" in shown
    assert question.split()[-1].lower().rstrip("?") in shown.partition("in common: ")[2]
    assert main([str(run_folder), question, "-k", "1", "--mode", "bm25"]) == 0
    assert "BM25 #" not in capsys.readouterr().out, "a single side has nothing to compare"


def test_a_hit_names_the_file_of_its_passage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origins = {
        "guide/a.md:12": Origin("guide/a.md", "Start > Now", 12),  # the title ends with the heading
        "b.pdf, page 3": Origin("b.pdf", "", 3),
        "https://example.org/c": Origin(url="https://example.org/c"),
        "c.jsonl": None,
    }
    titles = ["Guide > Start > Now", "Book", "Page", "Other"]
    passages = [
        Passage("zebra", title, title, origin=one)
        for title, one in zip(titles, origins.values(), strict=True)
    ]
    write_passages(tmp_path / "c.jsonl", passages)
    assert main(["--corpus", str(tmp_path / "c.jsonl"), "zebra"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "in common" in line]
    assert {*lines} == {f"{place} | in common: zebra" for place in origins}


def test_large_corpora_are_looked_up_without_holding_them(world: World) -> None:
    sources = [PassageSource(world.folder / "corpus.tsv")]
    held, streamed = PassageLookup(sources), PassageLookup(sources, in_memory_bytes=10)
    ids = ["p007", "p000", "absent"]
    assert streamed.get(ids) == held.get(ids) == {name: world.passages[int(name[1:])] for name in ids[:2]}
    assert streamed._held is None


FILLER = "Nothing of this matters here at all. "


def test_words_are_found_as_bm25_counts_them() -> None:
    words = QuestionWords("How to read the CSV files of a caf\u00e9?")
    text = "FILE by file: reads ca\ufb01 and caf\u00e9, not the csvx"
    assert words.in_common(text) == ["read", "files", "caf\u00e9"], "without stop words and final s"
    assert words.in_common("csv", text) == ["read", "csv", "files", "caf\u00e9"]
    pieces = words.pieces(text)
    assert "".join(pieces) == text
    assert pieces[1::2] == ["FILE", "file", "reads", "caf\u00e9"]


def test_characters_in_common_are_shown_as_one_word() -> None:
    words = QuestionWords("\u4e2d\u56fd\u7684\u9996\u90fd\u662f\u54ea\u91cc GPT\u6a21\u578b")
    text = "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd, gpt"
    assert words.in_common(text) == ["\u4e2d\u56fd\u7684\u9996\u90fd", "gpt"]
    assert (
        words.pieces(text)[1::2] == ["\u4e2d\u56fd\u7684\u9996\u90fd", "gpt"]
        and "".join(words.pieces(text)) == text
    )
    assert QuestionWords("\u9996").pieces(text)[1::2] == ["\u9996"]


def test_the_excerpt_is_where_the_most_words_are() -> None:
    text = FILLER * 20 + "A csv comes first. " + FILLER * 20 + "Here you read a csv file. " + FILLER * 20
    pieces = QuestionWords("read csv file").excerpt(text, 200)
    assert pieces[1::2] == ["read", "csv", "file"]
    shown = "".join(pieces)
    assert 150 <= len(shown) <= 208
    assert shown.startswith("... ") and shown.endswith(" ...")
    assert shown[4:].startswith(("Here", "Nothing")), "at the beginning of a sentence"


@pytest.mark.parametrize("limit", [5, 30, 117, 400])
@pytest.mark.parametrize("question", ["read csv file", "zebra", "", "nothing all", "\u4f60\u597d"])
def test_an_excerpt_is_a_part_of_the_text_and_short(question: str, limit: int) -> None:
    for text in (
        "",
        "csv",
        "\u4f60\u597d" * 300,
        FILLER * 9 + "csv\n\nfile\tread " + FILLER * 9,
        "x" * 1000 + " csv",
    ):
        shown = "".join(QuestionWords(question).excerpt(text, limit))
        flat = " ".join(text.split())
        kept = shown.removeprefix("... ").removesuffix(" ...")
        assert kept in flat and len(kept) <= limit
        assert len(flat) > limit or shown == flat
        if question == "zebra" and text:
            assert flat.startswith(kept) and kept


def test_a_huge_passage_is_read_in_part() -> None:
    assert "".join(QuestionWords("csv").excerpt("word " * 1_000_000 + "csv", 50)).endswith(" ...")
