"""``dpr adapt CORPUS``: a retriever that can be searched, from passages without questions, with one command;
``dpr quickstart FOLDER``: the same from a folder of documents, evaluated.

Both run other commands one after another, as the stages of one folder. ``<stage>/stage.json`` states the
settings and texts of the whole, the command line that does the same by hand, and, once the stage is done, its
outputs. A stage that is done is skipped; one that was interrupted continues. If the settings or the texts
have changed, all stages are made again.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError, StageError, StopRequested
from dpr.core.logs import details_in, get_logger
from dpr.core.records import json_sha256
from dpr.core.settings import Settings, drop_unused, leaves, overrides
from dpr.core.stopping import SignalBlock, describe
from dpr.data.pairs import PseudoPairs, kinds_of
from dpr.embedding.settings import EmbedConfig
from dpr.formats.checkpoints import RUN_FILE, is_checkpoint, resolve_checkpoint, write_run
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.jobs import compare, embed, prepare, retrieve, train
from dpr.jobs.doctor import problems_below
from dpr.jobs.indexes import index_choice, open_text_index
from dpr.jobs.sources import resolve_passage_sources
from dpr.models.biencoder import BiEncoder
from dpr.models.sources import files_of_model, local_model
from dpr.preparation.folder_data import content_of_documents, find_documents
from dpr.preparation.passages import GIVEN
from dpr.preparation.pseudo_questions import HELD_BACK
from dpr.preparation.settings import (
    AdaptSettings,
    FolderSettings,
    NewEncoderSettings,
    PrepareSettings,
    QuickstartSettings,
)
from dpr.retrieval.search_folder import SearchSettings
from dpr.retrieval.settings import IndexerConfig, RetrievalConfig
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import read_json, read_manifest, remove_folder, write_json
from dpr.storage.leftovers import remove_leftovers
from dpr.storage.outputs import LOCK_FILE, held, require_writable
from dpr.training import static_student
from dpr.training.linear_layer import MOST_QUESTIONS, add_fitted_layer
from dpr.training.settings import BiEncoderTrainConfig
from dpr.training.static_student import learn_static

logger = get_logger(__name__)

JOBS: dict[str, Callable[[Any], Any]] = {
    "prepare": prepare.run,
    "new-encoder": prepare.make_encoder,
    "train": train.run,
    "embed": embed.run,
    "retrieve": retrieve.run,
    "adapt": lambda config: write_fitted(config),  # defined below
}
"""Commands that stages run; for ``adapt`` itself, the part that fits a given model to the corpus."""
RECORD = "stage.json"
_FORMAT = 3
RESULT = "adapted.json"
FITTED = "fitted"
"""Checkpoint of the fitted model in the run of its stage."""
_TORCHRUN = """\
import sys
from torch.distributed import run
sys.excepthook = lambda *_: None
run.main()
"""
"""torchrun without its final traceback after a process or a signal has ended it; the processes state the cause."""
DETAILS = "log.txt"
"""File of the stages' commands and all that they print."""
TEMPERATURE = 0.15
"""Temperature of a new encoder; best or nearly best in 20 of 21 runs (benchmarks/results/adapt.md)."""
TEMPERATURE_OF_GIVEN = 0.05
WEIGHTS = (0.2, 0.6)
"""Bounds of the encoder's share in the hybrid; pseudo-questions alone would choose too high a share."""
WEIGHT_OF_GIVEN = 0.5
"""Share in the hybrid of a given model that was already trained (benchmarks/results/adapt_trained.md)."""
CLEARLY = 0.02
"""Margin by which another choice must beat the default."""
_DEPTH = 1000
"""Passages that each side of the hybrid lists."""
_METRIC = "ndcg@10"
LEAST_PAIRS = 8192
LEAST_PASSAGES = 20
"""Fewest passages: a batch has 16, and a tenth of the passages are held back."""
MADE = (
    "The questions are made from the texts, as those of the training were. They flatter the encoder: on real"
    " questions expect less of it beside BM25. questions=FILE measures with real ones."
)
SYSTEMS = {"bm25": "BM25", "dense": "trained", "hybrid": "hybrid"}
"""Stages that evaluate on test questions, and their names in tables."""


@dataclass(frozen=True)
class Texts:
    """Texts to search and train on, as the first stage prepares them."""

    prepared: Path
    """Folder of that stage, with the dev questions and the corpus to evaluate on."""
    corpus: Path
    """Passages to search."""
    evaluated: Path
    """Passages without the text that became a question."""
    train_sets: dict[str, dict[str, Any]]
    """Entries of the data sets to train on."""
    vocabulary: list[str] = field(default_factory=list)
    """Files with more text for a new vocabulary."""

    def counts(self) -> dict[str, Any]:
        """Returns the numbers of passages, questions and everything else."""
        return dict(read_manifest(self.prepared)["metadata"]["counts"])


def run(config: AdaptSettings) -> None:
    """Runs all stages and prints their results."""
    kinds_of(config.pairs, setting="pairs")
    out = Path(str(config.out))
    config.model_file, content = find_model("model_file", config.model_file, out)
    if config.static is not None and not is_fitted(config):
        raise ConfigError(
            f"static={config.static}, but model_file={config.model_file} does not say how a text becomes a"
            " vector; take a checkpoint, or a model of sentence-transformers"
        )
    start = time.monotonic()
    corpus = Path(str(config.corpus))
    made_of = {
        "corpus": content_sha256(corpus),
        "model_file": content,
        "static": config.static,
        "pairs": config.pairs,
        "max_pairs": config.max_pairs,
        "seed": config.seed,
    }
    train_sets = {"corpus": {"file": str(corpus), "pairs": config.pairs, "held_back": HELD_BACK}}
    prepared = out / "pseudo" / "questions"
    with stages_in(out, made_of, first=("pseudo", "model")) as stages:
        evaluated = corpus
        if not is_fitted(config):
            evaluated = prepared / "evaluation_corpus.jsonl"
            cut = PrepareSettings(sources=[str(corpus)], out=str(prepared), pairs="mixed")
            stages.run(
                "pseudo", "pseudo-questions, to choose the hybrid's weight by", "prepare", cut, ["questions"]
            )
        texts = Texts(prepared, corpus, evaluated, train_sets)
        adapt(stages, config, texts)

    name = shlex.quote(str(out))
    print(f"\nIt took {(time.monotonic() - start) / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {name} "your question"')
    print(f"In a browser:     dpr serve {name}")
    print(f"How good is it?   dpr evaluate run={name} set=FOLDER, with questions and judgements of yours")


def quickstart(config: QuickstartSettings) -> None:
    """Runs all stages and prints their results."""
    out = Path(str(config.out))
    model_file, content = find_model("encoder", None if config.encoder == "static" else config.encoder, out)
    start = time.monotonic()
    folder = Path(str(config.folder))
    made_of = asdict(config.part(FolderSettings)) | {"encoder": content}
    if config.questions is not None:
        made_of["questions"] = content_sha256(Path(config.questions))
    documents = find_documents(folder, config.types)
    made_of["folder"] = content_of_documents(documents)

    prepared = out / "data" / "texts"
    evaluated = prepared / "evaluation_corpus.jsonl"
    train_sets = {
        "corpus": {"file": str(evaluated), "pairs": "mixed"},
        "questions": {"file": str(prepared / "train.jsonl")},
    }
    vocabulary = [str(prepared / "train.jsonl")]
    texts = Texts(prepared, prepared / "corpus.jsonl", evaluated, train_sets, vocabulary)
    name = shlex.quote(str(out))
    with stages_in(out, made_of, first=("data",)) as stages:
        reading = PrepareSettings(
            sources=[str(folder)],
            out=str(prepared),
            words=config.words,
            overlap=config.overlap,
            types=config.types,
            seed=config.seed,
            questions=config.questions,
        )
        what = f"{len(documents)} files: passages, training questions, held-out questions"
        stages.run("data", what, "prepare", reading, [prepared.name])
        if not texts.counts()["train questions"]:
            write_search(out, texts.corpus, None)
            passages = texts.counts()["passages"]
            print(f"\n{passages:,} passages, too few questions in them to train on: BM25 searches them.")
            print("A larger folder, or questions=FILE with questions of yours, trains an encoder too.\n")
            print(f'Search by hand:   dpr search {name} "your question"')
            return
        trained = AdaptSettings(out=str(out), model_file=model_file, device=config.device)
        with redirect_stdout(stages.details):
            weight = adapt(stages, trained, texts)
        for system, label in SYSTEMS.items():
            search = search_of(trained, texts, system, "test")
            search.hybrid_weight = weight
            if system == "bm25":
                search.indexer.kind = "bm25"
            if system != "hybrid":
                search.hybrid = "none"
            stages.run(system, f"{label} on the test questions", "retrieve", search, ["metrics.json"])

    metrics = {system: out / system / "metrics.json" for system in SYSTEMS}
    runs = [f"{SYSTEMS[system]}={file}" for system, file in metrics.items()]
    counts = texts.counts()
    by_kind = counts["test questions by kind"]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in by_kind.items())
    asked = f"{counts['test questions']:,} held-out questions ({kinds})"
    print(f"\n{counts['passages']:,} passages of {counts['files']:,} files; {asked}.")
    is_made = GIVEN not in by_kind
    notes = [MADE] if is_made else []
    print("\n".join(notes))
    compare.run(compare.CompareSettings(runs=runs, metrics=["mrr@10"], out=str(out / "compared.json")))
    compare.report(compare.ReportSettings(folder=str(out), runs=runs), notes=notes)

    reached = {system: read_json(file)["metrics"] for system, file in metrics.items()}
    shares = {system: values["accuracy@5"] for system, values in reached.items()}
    print(
        f"\nThe passage is among the first five for {shares['dense']:.0%} of the questions with the trained"
        f" encoder, {shares['bm25']:.0%} with BM25, {shares['hybrid']:.0%} with both."
    )
    best = "hybrid"
    if not is_made:  # pseudo-questions choose nothing: the encoder was trained on such
        best = clearly_best({system: values["mrr@10"] for system, values in reached.items()}, best)
    if best == "hybrid":
        print("Search with both, the hybrid, which is the default.")
    else:
        print(
            f"On your questions {SYSTEMS[best]} alone is clearly ahead of the hybrid: search with --mode {best}."
        )
    if counts["unread files"]:
        listed = texts.prepared / "unread.jsonl"
        print(f"{counts['unread files']:,} files could not be read: {listed} says why")
    print(f"It took {(time.monotonic() - start) / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {name} "your question"')
    print(f"In a browser:     dpr serve {name} metadata=file")
    print(f"Curves:           {out / 'report.html'}")
    print(f"Details:          {out / DETAILS}")


def find_model(key: str, name: str | None, out: Path) -> tuple[str | None, str | None]:
    """Returns the folder of the model that a setting names, fetched if it is on the hub, and a hash of its
    content, before anything is made.

    Raises:
        ConfigError: there is none, or it lies in ``out``, whose stages may be made again.
    """
    if name is None:
        return None, None
    path = local_model(name)
    if path.is_file():
        raise ConfigError(f"{key}={name} is a file, expected a folder, or the name of a model")
    if path.is_dir() and next(path.rglob("*.safetensors"), None) is None:
        found = "holds no model.safetensors, expected the folder of a trained model"
        if any(path.rglob("*.bin")):
            found += "; pickled weights (.bin) are not read: save it again by its own library"
        raise ConfigError(f"{key}={name} {found}")
    if not path.exists():
        raise ConfigError(
            f"{key}={name}: there is no such file or folder; name a folder, or a model on the hub"
        )
    if path.resolve().is_relative_to(out.resolve()):
        raise ConfigError(f"{key}={name} lies in out={out}, which is made anew; name another folder by out=")
    content = [[name, content_sha256(file)] for name, file in files_of_model(path).items()]
    return str(path), json_sha256(content)


def adapt(stages: Stages, config: AdaptSettings, texts: Texts) -> float:
    """Runs all stages after the first, which has prepared the texts; writes ``search.json`` and
    ``adapted.json``. Returns the encoder's share in the hybrid."""
    out = stages.out
    if is_fitted(config):  # then nothing is chosen by pseudo-questions
        fitting = replace(config, corpus=str(texts.evaluated), out=str(out))
        what = "a linear layer behind the model, fitted to the corpus"
        if config.static is not None:
            what = f"a static encoder of {config.static}, which learns the model's vectors"
        stages.run("model", what, "adapt", fitting, [RUN_FILE])
        embed_with_model(stages, config, "vectors", texts.corpus)
        if texts.evaluated != texts.corpus:
            embed_with_model(stages, config, "evaluation", texts.evaluated)
        write_search(out, texts.corpus, WEIGHT_OF_GIVEN)
        write_json(out / RESULT, {"hybrid_weight": WEIGHT_OF_GIVEN}, note={})
        if config.static is None:
            print("\nA linear layer behind the model was fitted to questions cut from the corpus.")
            print("The model's own weights are as they were. Only real questions can tell what it gains.")
        else:
            print(
                "\nA static encoder has learned the model's vectors of passages and of questions cut from them."
            )
            print("Only real questions can tell what it loses.")
        print(f"The encoder's weight in the hybrid is {WEIGHT_OF_GIVEN:g}.")
        return WEIGHT_OF_GIVEN

    temperature = TEMPERATURE if config.model_file is None else TEMPERATURE_OF_GIVEN
    if config.model_file is None:
        empty = NewEncoderSettings(
            corpus=str(texts.corpus),
            questions=texts.vocabulary,
            out=str(out / "encoder" / "untrained"),
            layers=0,
            hidden=1024,
        )
        stages.run("encoder", "a static encoder without weights", "new-encoder", empty, ["untrained"])

    final = training(config, texts, out / "model", temperature)
    stages.run("model", "training", "train", final, [RUN_FILE], processes=config.processes)

    embed_with_model(stages, config, "vectors", texts.corpus)
    embed_with_model(stages, config, "evaluation", texts.evaluated)

    hybrid = search_of(config, texts, "weight", "dev")
    hybrid.tune_hybrid_weight = True
    hybrid.tune_metric = _METRIC
    what = "the hybrid's weight, on the dev questions"
    stages.run("weight", what, "retrieve", hybrid, ["metrics.json", "index"])
    values = read_json(out / "weight" / "metrics.json")["tried_weights"]
    by_weight = {float(weight): value for weight, value in values.items()}
    weight = chosen_weight(by_weight)

    write_search(out, texts.corpus, weight)
    num_cut = texts.counts().get("pseudo-questions")
    queries = f"{num_cut:,} pseudo-questions, made from the texts" if num_cut else "the dev questions"
    print(f"\nnDCG@10 on {queries}, which choose the weight and are no measure of quality:")
    both = f"both {by_weight[weight]:.3f}, with weight {weight:g}"
    print(f"  {by_weight[0.0]:.3f}  BM25; the encoder {by_weight[1.0]:.3f}; {both}")
    chosen = {
        "pseudo_ndcg@10": {
            "bm25": by_weight[0.0],
            "dense": by_weight[1.0],
            "hybrid": by_weight[weight],
        },
        "hybrid_weight": weight,
    }
    write_json(out / RESULT, chosen, note={})
    return weight


def is_fitted(config: AdaptSettings) -> bool:
    """True if the given model gets a linear layer, or static towers that learn its vectors, instead of being
    trained. This is so if it states how a text becomes a vector, as a model trained for retrieval does."""
    return config.model_file is not None and states_vectors(config.model_file)


def states_vectors(model_file: str) -> bool:
    """True if a model states how a text becomes a vector."""
    folder = Path(model_file)
    return is_checkpoint(resolve_checkpoint(folder)) or (folder / "modules.json").is_file()


def write_fitted(config: AdaptSettings) -> None:
    """Writes a run with the given model and the layer or static towers that were fitted to the corpus."""
    folder = Path(str(config.out)) / "model"
    model = BiEncoder.load(str(config.model_file), resolve_device(config.device))
    if config.static is not None:
        pairs = PseudoPairs(str(config.corpus), kinds=config.pairs)
        most = config.max_pairs or static_student.MOST_QUESTIONS
        model = learn_static(model, pairs, sides=config.static, most_questions=most, seed=config.seed)
    else:
        # Whole sentences and titles teach more than shortened crops, which are for an untrained model.
        kinds = ["sentence", "title"] if config.pairs == "mixed" else config.pairs
        pairs = PseudoPairs(str(config.corpus), kinds=kinds, drop_words=0.0)
        add_fitted_layer(model, pairs, most_questions=config.max_pairs or MOST_QUESTIONS, seed=config.seed)
    model.save(folder / FITTED, overwrite=True)
    write_run(folder, {"best_checkpoint": FITTED, "last_checkpoint": FITTED})


def embed_with_model(stages: Stages, config: AdaptSettings, name: str, corpus: Path) -> None:
    """Runs the stage ``name``, which makes the vectors of a corpus."""
    vectors = EmbedConfig(
        model_file=str(stages.out / "model"),
        ctx_src=str(corpus),
        out_file=str(stages.out / name / "corpus"),
        device=config.device,
    )
    what = f"the vectors of {corpus}"
    stages.run(name, what, "embed", vectors, ["corpus_0"], processes=config.processes)


def clearly_best(reached: Mapping[str, float], default: str) -> str:
    """Returns the default, unless another choice is clearly better."""
    best = max(reached, key=lambda choice: reached[choice])
    return best if reached[best] > reached[default] + CLEARLY else default


def chosen_weight(by_weight: dict[float, float]) -> float:
    """Returns the share nearest to the default, among those within the bounds that are not clearly worse on
    the dev questions than the best. A share of 0 is BM25 alone, of 1 the encoder."""
    within = {weight: value for weight, value in by_weight.items() if WEIGHTS[0] <= weight <= WEIGHTS[1]}
    good = [weight for weight, value in within.items() if value >= max(within.values()) - CLEARLY]
    return min(good, key=lambda weight: (abs(weight - DEFAULT_WEIGHT), weight))


def training(config: AdaptSettings, texts: Texts, folder: Path, temperature: float) -> BiEncoderTrainConfig:
    """Returns the settings of the training, with the dev questions for validation.

    If there are few passages, the batch is small, so that there are enough steps. The number of pairs is a
    multiple of the number of passages within bounds, so that the time is bounded.
    """
    made = BiEncoderTrainConfig(output_dir=str(folder), seed=config.seed, device=config.device)
    made.train_datasets = list(texts.train_sets)
    made.datasets = texts.train_sets
    made.train.sampling.mixed = len(texts.train_sets) > 1
    made.train.hard_negatives = 0
    made.loss.temperature = temperature
    dev = {"kind": "retrieval", "corpus": str(texts.evaluated), "name": "dev"}
    dev["questions"] = str(texts.prepared / "dev_questions.jsonl")
    dev["qrels"] = str(texts.prepared / "dev_qrels.tsv")
    made.train.validation = [dev]
    made.train.eval_at_start = False
    made.train.best_metric = f"eval/dev/{_METRIC}"
    made.train.keep_last = 1

    passages = texts.counts()["passages"]
    if passages < LEAST_PASSAGES:
        raise InputError(
            f"has {passages} passages, too few to train on",
            file=texts.corpus,
            expected=f"{LEAST_PASSAGES} or more",
            hint=f"dpr search {texts.corpus} searches them by words",
        )
    batch = max(16, min(1024, 2 ** (passages.bit_length() - 2)))
    if config.model_file is None:
        pairs: float = max(LEAST_PAIRS, min(16 * passages, 131_072))
        made.encoder.encoder_model_type = "static"
        made.encoder.pretrained_model_cfg = str(Path(str(config.out)) / "encoder" / "untrained")
        made.encoder.shared = True
        made.encoder.pooling = "idf_sqrt"
        made.encoder.normalize = True
        made.encoder.dropout = 0.0
        made.train.learning_rate = 0.02
    else:
        batch = min(batch, 32)
        pairs = max(1024, min(4 * passages, 20_000))
        made.model_file = config.model_file
        if not states_vectors(config.model_file):
            made.encoder.pooling = "mean"
            made.encoder.normalize = True
    steps = max(1, round((config.max_pairs or pairs) / batch))
    made.train.batch_size = batch // config.processes
    made.train.global_batch_size = batch
    made.train.max_steps = steps
    made.train.num_train_epochs = -(-steps // max(1, passages // batch))
    made.train.eval_every_steps = steps
    return made


def search_of(config: AdaptSettings, texts: Texts, name: str, split: str) -> RetrievalConfig:
    """Returns the settings of a stage that searches by the hybrid, with the questions of a split."""
    out = Path(str(config.out))
    return RetrievalConfig(
        qa_dataset=str(texts.prepared / f"{split}_questions.jsonl"),
        qrels=str(texts.prepared / f"{split}_qrels.tsv"),
        ctx_datasets=str(texts.evaluated),
        model_file=str(out / "model"),
        encoded_ctx_files=str(out / "evaluation" / "corpus_0"),
        bm25_index_path=str(out / "weight" / "index"),
        hybrid="linear",
        hybrid_depth=_DEPTH,
        metrics_file=str(out / name / "metrics.json"),
        device=config.device,
    )


def write_search(out: Path, corpus: Path, weight: float | None) -> None:
    """Writes ``search.json`` and the index of BM25, so that ``dpr search`` and ``dpr serve`` open the folder
    ``out``. Without a weight, they search by BM25 alone."""
    passages = resolve_passage_sources([str(corpus)], {})
    words = out / "bm25_index"
    choice = index_choice(IndexerConfig(kind="bm25"))
    try:
        open_text_index(choice, passages, str(words))
    except InputError:  # an index of earlier texts, or damaged
        if not words.exists():
            raise
        remove_folder(words)
        open_text_index(choice, passages, str(words))
    if weight is None:
        search = SearchSettings(passages=passages, bm25_index_path=str(words), indexer={"kind": "bm25"})
    else:
        search = SearchSettings(
            model_file=str(out / "model"),
            encoded_ctx_files=[str(out / "vectors" / "corpus_0")],
            passages=passages,
            bm25_index_path=str(words),
            hybrid="linear",
            hybrid_weight=weight,
            hybrid_depth=_DEPTH,
        )
    search.write(out)


class _Interrupts(SignalBlock):
    """Block in which every signal that asks to stop has the effect of Ctrl-C."""

    number = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt


@contextmanager
def stages_in(out: Path, made_of: Mapping[str, Any], *, first: Sequence[str]) -> Iterator[Stages]:
    """Lets this process alone make the stages of the folder ``out`` inside the block, one of ``first`` before
    all others.

    Args:
        made_of: the settings that determine the outputs, and the content of the user's files.

    Raises:
        ConfigError: ``out`` holds other files, and no such stage.
        StopRequested: a signal asked to stop.
    """
    stages = [record.parent for record in out.glob(f"*/{RECORD}")]
    if out.is_dir() and not any(stage.name in (*first, record_of(stage).get("stage")) for stage in stages):
        others = [path.name for path in sorted(out.iterdir()) if not path.name.startswith(".")]
        others = [name for name in others if name not in (*first, LOCK_FILE, DETAILS)]
        if others:
            kind = "a training run" if RUN_FILE in others else "other files"
            raise ConfigError(
                f"out={out} holds {kind} ({others[0]}); name a new folder, or one that this command made"
            )
    if inside := [parent for parent in out.resolve().parents if (parent / RECORD).is_file()]:
        raise ConfigError(
            f"out={out} lies in {inside[0]}, a stage of {inside[0].parent} that may be made again; name another folder"
        )
    require_writable(out, folder=True)
    out.mkdir(parents=True, exist_ok=True)
    with held(out), _Interrupts() as signals, details_in(out / DETAILS, __name__) as details:
        remove_leftovers(out)
        try:
            yield Stages(out, made_of, details, signals)
        except KeyboardInterrupt:
            why = describe(signals.number) if signals.number else "interrupted"
            raise StopRequested(f"{why}. Rerun the same command to resume") from None


class Stages:
    """Stages of a folder, which ``run`` runs; their output goes to ``details``."""

    def __init__(
        self, out: Path, made_of: Mapping[str, Any], details: TextIO | None, signals: _Interrupts
    ) -> None:
        self.out = out
        self._signals = signals
        self.details = details
        self._made_of = json.loads(json.dumps(made_of))
        self._passed = [out]

    def run(
        self, name: str, what: str, job: str, config: Settings, outputs: Sequence[str], *, processes: int = 1
    ) -> None:
        """Runs a job with these settings, unless it is done.

        Args:
            name: name of the stage and of its folder.
            what: description of the stage, for people.
            job: command that does it.
            outputs: its outputs, by name inside its folder.
            processes: number of processes that do it together, started by torchrun.

        Raises:
            InputError: an output is missing at the end.
            StageError: it has failed in several processes; carries the exit code.
        """
        if self._signals.number:  # its KeyboardInterrupt was lost, as Python ignores those in a destructor
            raise KeyboardInterrupt
        folder = self.out / name
        file = folder / RECORD
        self._passed.append(folder)
        if file.is_file():
            record = record_of(folder)
            if not record:
                hint = f"remove {folder} to run the stage again"
                raise InputError("is not the record of a stage", file=file, hint=hint)
            was = record.get("made_of", {})
            reasons = [f"{key} changed" for key in self._made_of if was.get(key) != self._made_of[key]]
            if "outputs" in record:
                reasons += [f"{output} is missing" for output in outputs if not (folder / output).exists()]
                if not reasons:
                    found = problems_below(folder)
                    reasons += [f"{part}: {problems[0]}" for part, problems in found.items() if problems]
                if not reasons:
                    logger.debug("%s: already done", name)
                    return
            if reasons:
                logger.warning("making %s again, and what follows: %s", name, ", ".join(reasons))
                remove_folder(folder)
        elif others := [
            path.name for path in folder.glob("[!.]*")
        ]:  # not left by a killed run, which writes the record first
            hint = "move the folder away, or name another one by out="
            raise InputError(
                f"holds other files ({min(others)}), and is needed for a stage", file=folder, hint=hint
            )
        for later in list(self.out.glob(f"*/{RECORD}")):  # later stages read these outputs
            stage = later.parent
            # a stage that somebody has copied or renamed is no longer one of this folder
            if stage not in self._passed and record_of(stage).get("stage") == stage.name:
                remove_folder(stage)

        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        drop_unused(config)
        config.check()
        command = command_line(job, config)
        logger.info("%s: %s", name, what)
        logger.debug("$ %s", shlex.join(command))
        record = {"format": _FORMAT, "stage": name, "made_of": self._made_of, "command": command}
        write_json(file, record, note={})
        if processes == 1:
            with redirect_stdout(self.details):
                JOBS[job](config)
            gc.collect()  # frees models in reference cycles
        else:
            # -m dpr means this package, whatever is in the working directory
            paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
            own = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            launcher = [_TORCHRUN, "--standalone", f"--nproc-per-node={processes}", "-m"]
            child = subprocess.Popen([sys.executable, "-c", *launcher, *command], env=os.environ | own)
            try:
                code = child.wait()
            except KeyboardInterrupt:  # a signal ends the stage as it would end the command
                child.terminate()
                child.wait()
                raise
            if code:
                said = f"{name} ended with exit code {code}\nfix the error above and rerun the same command to resume"
                raise StageError(said, exit_code=code if code > 0 else 128 - code)
        for output in outputs:
            if not (folder / output).exists():
                raise InputError("was not written", file=folder / output)
        write_json(file, record | {"outputs": outputs}, note={})


def record_of(stage: Path) -> dict[str, Any]:
    """Returns the record of a stage; empty if it is damaged or of another version."""
    with suppress(InputError):
        record = read_json(stage / RECORD)
        if isinstance(record, dict) and record.get("format") == _FORMAT:
            return record
    return {}


def command_line(job: str, config: Settings) -> list[str]:
    """Returns the command that does the job with these settings: the words after ``python -m``."""
    values: dict[str, Any] = {}
    for key, leaf in leaves(config).items():
        if key == "datasets":
            for entry, options in leaf.value.items():
                values |= {f"datasets.{entry}.{option}": value for option, value in options.items()}
        elif leaf.value != leaf.default:
            values[key] = leaf.value
    return ["dpr", job, *overrides(values)]
