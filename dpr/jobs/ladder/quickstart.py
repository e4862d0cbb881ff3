"""``dpr quickstart FOLDER``: prepare, train, embed, evaluate beside BM25, as stages of public commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpr.core.hashes import text_sha256
from dpr.jobs.ladder.stages import Stage
from dpr.jobs.ladder.training import trained_files
from dpr.jobs.sources import resolve_passage_sources
from dpr.preparation.folder_data import CORPUS, DEV, EVALUATION_CORPUS, TEST
from dpr.preparation.folder_files import find_documents, name_in
from dpr.preparation.settings import FolderSettings
from dpr.retrieval.search_folder import SearchSettings
from dpr.storage.durable import read_json, read_manifest

STATIC, TRANSFORMER = "static", "transformer"
SYSTEMS = {"bm25": "BM25", "dense": "trained", "hybrid": "hybrid"}
"""The stages that evaluate on the test questions, and their names in tables."""
_DEPTH = 1000


@dataclass(frozen=True, slots=True)
class QuickstartPlan:
    """What the command was asked for."""

    folder: Path
    out: Path
    reading: FolderSettings
    questions: Path | None = None
    encoder: str = STATIC
    """static, transformer (one small layer, from nothing), or the folder or name of a trained model."""
    device: str | None = None

    def metrics(self, stage: str) -> Path:
        """The metrics file of a stage."""
        return self.out / stage / "metrics.json"

    @property
    def data(self) -> Path:
        """What the folder was made into."""
        return self.out / "data" / "texts"

    def counts(self) -> dict[str, Any]:
        """How much of everything there is, once the folder is prepared."""
        return dict(read_manifest(self.data)["metadata"]["counts"])

    def weight(self) -> float:
        """The hybrid's share of the dense side, once it is chosen."""
        return float(read_json(self.metrics("weight"))["hybrid_weight"])


def stages(plan: QuickstartPlan) -> list[Stage]:
    """All stages, in order.

    Raises:
        InputError: the folder does not exist or holds no documents.
    """
    return _Builder(plan).build()


def write_search(plan: QuickstartPlan) -> None:
    """Writes ``search.json``, so that ``dpr search`` and ``dpr serve`` open the folder ``out``: with BM25 alone where there was nothing to
    train on."""
    passages = resolve_passage_sources([str(plan.data / CORPUS)], {})
    if not plan.counts()["train questions"]:
        SearchSettings(passages=passages, indexer={"kind": "bm25"}).write(plan.out)
        return
    SearchSettings(
        model_file=str(plan.out / "model"),
        encoded_ctx_files=[str(plan.out / "vectors" / "corpus_0")],
        passages=passages,
        bm25_index_path=str(plan.out / "bm25_index"),
        hybrid="linear",
        hybrid_weight=plan.weight(),
        hybrid_depth=_DEPTH,
    ).write(plan.out)


def training_overrides(encoder: str, questions: int) -> list[str]:
    """The settings of ``dpr train`` for an encoder and a number of training questions. The batch is small where there are few, so that
    there are steps to learn in."""
    batch = max(16, min(512, 2 ** ((questions // 8).bit_length() - 1)))
    if encoder == STATIC:
        few = questions < 5000
        return ["encoder=static", f"train.batch_size={batch}", f"train.num_train_epochs={10 if few else 3}", "train.learning_rate=0.005"]
    if encoder == TRANSFORMER:
        return ["encoder=quickstart", "train=quickstart", "loss.temperature=0.07", f"train.batch_size={min(batch, 96)}"]
    start = [f"model_file={encoder}"] if Path(encoder).is_dir() else [f"encoder.pretrained_model_cfg={encoder}", "encoder.shared=true"]
    if not (Path(encoder) / "modules.json").is_file():
        start += ["encoder.pooling=mean", "encoder.normalize=true"]
    return [*start, "loss.temperature=0.05", f"train.batch_size={min(batch, 32)}", "train.num_train_epochs=1"]


class _Builder:
    def __init__(self, plan: QuickstartPlan) -> None:
        self.plan = plan
        self.stages: list[Stage] = []
        self.is_new = plan.encoder in (STATIC, TRANSFORMER)
        self.device = [] if plan.device is None else [f"device={plan.device}"]
        self.model = f"model_file={plan.out / 'model'}"

    def build(self) -> list[Stage]:
        plan, data = self.plan, self.plan.data
        self._prepare()
        if self.is_new:
            shape = {"layers": 0, "hidden": 512} if plan.encoder == STATIC else {"layers": 1, "hidden": 256}
            shape["vocab_size"] = 30_000 if plan.encoder == STATIC else 8000
            texts = [f"corpus={data / CORPUS}", "--questions", str(data / "train.jsonl")]
            made = [f"out={plan.out / 'encoder' / 'untrained'}", *(f"{key}={value}" for key, value in shape.items())]
            self._stage("encoder", "an encoder without weights", lambda: ["new-encoder", *texts, *made], ["untrained"], shape)
        self._train()
        self._embed("vectors", "corpus", CORPUS, "the passages, for searching")
        self._embed("evaluation", "corpus", EVALUATION_CORPUS, "the passages, with the questions made of them hidden")
        bm25 = ["indexer=bm25", f"bm25_index_path={plan.out / 'bm25' / 'index'}"]
        dense = [self.model, f"encoded_ctx_files={plan.out / 'evaluation' / 'corpus_0'}", *self.device]
        both = [*dense, *bm25[1:], "hybrid=linear", f"hybrid_depth={_DEPTH}"]
        self._retrieve("bm25", TEST, lambda: bm25, "BM25 on the test questions", ["index"])
        self._retrieve("dense", TEST, lambda: dense, "the trained encoder on the test questions")
        self._retrieve("weight", DEV, lambda: [*both, "tune_hybrid_weight=true"], "both together: the weight, on the dev questions")
        self._retrieve("hybrid", TEST, lambda: [*both, f"hybrid_weight={plan.weight()}"], "both together on the test questions")
        return self.stages

    def _stage(
        self,
        name: str,
        what: str,
        command: Callable[[], list[str]],
        outputs: Sequence[str],
        settings: dict[str, Any],
        **options: Any,
    ) -> None:
        before = [stage.name for stage in self.stages]
        self.stages.append(Stage(name, self.plan.out / name, what, command, settings, lambda: outputs, after=before, **options))

    def _prepare(self) -> None:
        plan = self.plan
        files = find_documents(plan.folder, plan.reading.types)
        values = {key: value for key, value in asdict(plan.reading).items() if key != "types"}
        given = [f"{key}={value}" for key, value in values.items()]
        given += [f"types={','.join(plan.reading.types)}"] if plan.reading.types else []
        given += [f"questions={plan.questions}"] if plan.questions else []
        names = text_sha256(json.dumps([name_in(plan.folder, path) for path in files]))
        self._stage(
            "data",
            f"{len(files)} files: passages, training questions, held-out questions",
            lambda: ["prepare-folder", str(plan.folder), f"out={plan.data}", *given, "few=true"],
            ["texts"],
            {**values, "types": plan.reading.types, "names": names},
            inputs={"folder": files, **({"questions": [plan.questions]} if plan.questions else {})},
        )

    def _train(self) -> None:
        plan, folder = self.plan, self.plan.out / "model"
        start = [f"encoder.pretrained_model_cfg={plan.out / 'encoder' / 'untrained'}"] if self.is_new else []
        files = [f"train_datasets={plan.data / 'train.jsonl'}", f"dev_datasets={plan.data / 'dev.jsonl'}", f"output_dir={folder}"]

        def command() -> list[str]:
            questions = plan.counts()["train questions"]
            return ["train", *training_overrides(plan.encoder, questions), "train.hard_negatives=0", *start, *files, *self.device]

        known = Path(plan.encoder)
        stage = Stage(
            "model",
            folder,
            f"training ({plan.encoder})",
            command,
            {"encoder": plan.encoder if not known.is_dir() else "a folder"},
            lambda: trained_files(folder),
            inputs={"encoder": [known]} if known.is_dir() and not self.is_new else {},
            after=[stage.name for stage in self.stages],
            is_training=True,
        )
        self.stages.append(stage)

    def _embed(self, name: str, out: str, corpus: str, what: str) -> None:
        place, source = f"out_file={self.plan.out / name / out}", f"ctx_src={self.plan.data / corpus}"
        self._stage(name, what, lambda: ["embed", self.model, source, place, *self.device], [f"{out}_0"], {})

    def _retrieve(self, name: str, split: str, how: Callable[[], list[str]], what: str, more: Sequence[str] = ()) -> None:
        data = self.plan.data
        asked = [f"qa_dataset={data / f'{split}_questions.jsonl'}", f"qrels={data / f'{split}_qrels.tsv'}"]
        asked += [f"ctx_datasets={data / EVALUATION_CORPUS}", f"metrics_file={self.plan.metrics(name)}"]
        self._stage(name, what, lambda: ["retrieve", *asked, *how()], ["metrics.json", *more], {"hybrid_depth": _DEPTH})
