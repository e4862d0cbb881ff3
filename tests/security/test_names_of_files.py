"""Whatever name in a JSON file is made to lead elsewhere: nothing there is written, removed or shown."""

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpr.cli.main import main
from dpr.core.errors import InputError
from dpr.core.records import Passage, Question, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from dpr.formats.training_files.dpr import write_training_set
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.preparation.new_encoder import EncoderShape, new_encoder
from dpr.storage.durable import CHECKSUM, MANIFEST, describe_file, write_manifest
from dpr.storage.untrusted import inside
from tests.faults.runs import all_files
from tests.helpers.examples import IS_THOROUGH, some

SECRET = "secretword"
ASKED = f"which {SECRET} river is long"
Place = tuple[Any, ...]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that can be searched, a training run, an evaluation, an exported model: all folders that name files."""
    place = tmp_path_factory.mktemp("good")
    names = "river mountain planet cheese bridge whale poem tennis engine tree clock island".split()
    gift = place / "gift"
    (gift / "set" / "qrels").mkdir(parents=True)
    questions = [Question(f"which {name} is long", f"q{row}") for row, name in enumerate(names)]
    passages = [
        Passage(f"The {name} of region {row} is long and near the {names[row - 1]}.", "", f"d{row}")
        for row, name in enumerate(names)
    ]
    for file in (gift / "corpus.jsonl", gift / "set" / "corpus.jsonl"):
        write_passages(file, passages)
    write_questions(gift / "set" / "queries.jsonl", questions)
    write_qrels(gift / "set" / "qrels" / "test.tsv", {f"q{row}": {f"d{row}": 1} for row in range(len(names))})
    pairs = zip(questions, passages, strict=True)
    write_training_set(
        place / "train.jsonl", [TrainingSample(question.text, (passage,)) for question, passage in pairs]
    )
    shape = EncoderShape(num_layers=0, hidden_size=16, vocab_size=300)
    new_encoder(place / "enc", gift / "corpus.jsonl", shape=shape)
    settings = EncoderSettings(pooling="mean", shared=True)
    BiEncoder.from_pretrained(str(place / "enc"), settings).save(gift / "model")
    read = [f"model_file={gift / 'model'}", "device=cpu"]
    run(place, *TRAIN, f"output_dir={gift / 'run'}")
    run(place, "embed", *read, f"ctx_src={gift / 'corpus.jsonl'}", f"out_file={gift / 'vectors'}")
    index = [f"bm25_index_path={gift / 'bm25'}", "hybrid=linear", f"search_folder={gift}"]
    files = [f"{key}={gift}/{name}" for key, name in FILES.items()]
    run(place, "retrieve", *read, *files, *index, f"encoded_ctx_files={gift / 'vectors_0'}")
    run(place, "evaluate", f"set={gift / 'set'}", "systems=[bm25]", f"output_dir={gift / 'evaluation'}")
    run(place, "export", read[0], "to=sentence-transformers", f"out={gift / 'exported'}")
    return place


FILES = {"qa_dataset": "set/queries.jsonl", "qrels": "set/qrels/test.tsv", "ctx_datasets": "corpus.jsonl"}


TRAIN = (
    "train train_datasets=train.jsonl encoder.pretrained_model_cfg=enc encoder.pooling=mean encoder.shared=true"
    " train.batch_size=4 train.max_steps=2 train.num_workers=0 device=cpu train.keep_last=1"
).split()
EMBED = ["embed", "ctx_src=gift/corpus.jsonl", "out_file=gift/others", "device=cpu"]
SEARCHES = [["search", "gift", ASKED, f"mode={mode}"] for mode in ("bm25", "dense")]
OPENED: dict[str, list[list[str]]] = {
    "search.json": [["search", "gift", ASKED], *SEARCHES],
    "run": [
        [*TRAIN, "train.max_steps=3", "output_dir=gift/run"],
        ["export", "model_file=gift/run", "to=model", "out=gift/whole"],
    ],
    "evaluation": [["compare", "gift/evaluation"]],
    "exported": [[*EMBED, "model_file=gift/exported"]],
    "model": [[*EMBED, "model_file=gift/model"]],
    "vectors_0": SEARCHES[1:],
    "bm25": SEARCHES[:1],
}
"""The commands that open the parts of the gift."""


def run(place: Path, *words: str, may_fail: bool = False) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        code = main(list(words))
    assert code != 1 and (may_fail or code == 0), words


def names_in(file: Path) -> Iterator[Place]:
    """Where a JSON file names what lies beside it, as a value or as a key."""

    def walk(value: Any, at: Place) -> Iterator[Place]:
        if (
            isinstance(value, str)
            and value
            and len(value) < 200
            and value[0] != "/"
            and (file.parent / value).exists()
        ):
            yield at
        for key, item in (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        ):
            yield from walk(item, (*at, key))
            if isinstance(value, dict) and key and (file.parent / key).is_file():
                yield (*at, key, "the key")

    yield from walk(json.loads(file.read_text()), ())


def renamed(file: Path, at: Place, change: Callable[[str], str]) -> None:
    """Changes the name at a place, and makes the checksums anew."""
    value = holder = json.loads(file.read_text())
    *path, last = at[:-1] if at[-1] == "the key" else at
    for key in path:
        holder = holder[key]
    if at[-1] == "the key":
        holder[change(last)] = holder.pop(last)
    else:
        holder[last] = change(holder[last])
    if file.name == MANIFEST:
        write_manifest(file.parent, value["metadata"], files=value["files"])
        return
    file.write_text(json.dumps(value))
    if (note := file.with_name(file.name + CHECKSUM)).is_file():
        note.write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")
    if (manifest := file.with_name(MANIFEST)).is_file():
        stated = json.loads(manifest.read_text())
        stated["files"][file.name] = describe_file(file)
        write_manifest(file.parent, stated["metadata"], files=stated["files"])


@pytest.mark.parametrize("part", some(list(OPENED), "search.json", "model", "exported"))
def test_a_name_leads_nowhere_else(
    part: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Out of a folder and through a link in turn; ``make fuzz`` tries every name both ways."""
    files = [
        path
        for path in sorted((good / "gift").rglob("*.json"))
        if path.relative_to(good / "gift").parts[0] == part
    ]
    places = [(file.relative_to(good), at) for file in files for at in names_in(file)]
    assert places, "this part names nothing"
    if IS_THOROUGH:
        cases = list(itertools.product(places, ["above", "a link"]))
    else:
        cases = list(zip(places, itertools.cycle(["above", "a link"])))
    for number, ((file, at), how) in enumerate(cases):
        place, outside = tmp_path / str(number), tmp_path / str(number) / "outside"
        shutil.copytree(good, place)
        outside.mkdir()

        def led_outside(
            name: str, place: Path = place, outside: Path = outside, file: Path = file, how: str = how
        ) -> str:
            """A name of what lies outside: a copy of the same, which holds a text of its own."""
            target, within = outside / Path(name).name, place / file.parent / name
            shutil.copytree(within, target) if within.is_dir() else shutil.copy(within, target)
            if target.suffix == ".jsonl":
                target.write_text(
                    target.read_text()
                    + json.dumps({"_id": "x", "title": "", "text": f"The {SECRET} river is long."})
                    + "\n"
                )
            if how == "a link":
                within.rename(outside / "moved")
                within.symlink_to(target)
                return name
            return f"{'../' * (len(file.parts) - 1)}outside/{target.name}"

        renamed(place / file, at, led_outside)
        before = all_files(outside)
        for words in OPENED[part]:
            capsys.readouterr()
            run(place, *words, may_fail=True)
            said = capsys.readouterr()
            assert f"The {SECRET} river" not in said.out + said.err, (file, at, words)
        assert all_files(outside) == before, (file, at)
        shutil.rmtree(place)


def test_passages_outside_are_searched_where_the_folder_says_what_they_held(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    files = [f"{key}=gift/{name}" for key, name in FILES.items()]
    run(tmp_path, "retrieve", "indexer=bm25", *files, "search_folder=mine")
    run(tmp_path, "search", "mine", ASKED)
    stated = json.loads((tmp_path / "mine" / "search.json").read_text())
    (tmp_path / "mine" / f"search.json{CHECKSUM}").unlink()
    for changed in ([], ["0" * 64]):
        (tmp_path / "mine" / "search.json").write_text(json.dumps(stated | {"fingerprints": changed}))
        capsys.readouterr()
        run(tmp_path, "search", "mine", ASKED, may_fail=True)
        said = capsys.readouterr()
        assert not said.out and "--corpus" in said.err
        run(tmp_path, "search", "mine", ASKED, "--corpus", "gift/corpus.jsonl")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/../..", "/etc/passwd", "../x", "a\\b", "a\0b", "link", "link/x", None, 3, "x" * 5000],
)
def test_what_is_no_name_inside_a_folder(name: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path)
    assert inside(tmp_path / "folder", "a/b", stated_in="x.json") == tmp_path / "folder/a/b"
    with pytest.raises(InputError, match=r"x\.json: names"):
        inside(tmp_path / "folder", name, stated_in="x.json")
