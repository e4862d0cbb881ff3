"""The model card of an exported folder: README.md with the head that model hubs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpr.core.version import __version__
from dpr.evaluation.report.reading import Retrieval
from dpr.export.checking import Checked
from dpr.export.tower_files import weights_tokens
from dpr.models.biencoder import BiEncoder

README = "README.md"
_TASK = "information-retrieval"
_USUAL = ("accuracy@1", "accuracy@5", "accuracy@20", "accuracy@100", "mrr@10", "ndcg@10", "recall@100")
_READ_HERE = ("sentence-transformers", "hf-dpr")


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says beyond the model itself; whatever is not known stays out of it."""

    name: str
    license: str | None = None
    base_model: str | None = None
    """The name of the model that training began with, where it is one of a hub and not a folder."""
    command: str = ""
    seed: int | None = None
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Fingerprints of the data by what they are of."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the checkpoint's own validation."""
    retrievals: Sequence[Retrieval] = ()

    def chosen(self) -> dict[str, Any]:
        """What a person chose of it, without what is not given."""
        chosen = {
            "license": self.license,
            "results": [[each.label, each.metrics] for each in self.retrievals],
        }
        return {name: value for name, value in chosen.items() if value}


def model_card(
    model: BiEncoder,
    facts: CardFacts,
    *,
    to: str,
    usage: str,
    report: Sequence[Checked],
    precisions: Mapping[str, Mapping[str, float]],
) -> str:
    """README.md of a folder of the format ``to``.

    Args:
        usage: lines of Python that load it.
        report: which programs were asked, and what they make of the folder.
        precisions: what ``dpr.export.onnx_graph.write_precisions`` measured.
    """
    is_read_here = to in _READ_HERE and not weights_tokens(model)
    sections = [
        f"# {facts.name}",
        _what(model),
        _use(usage, is_read_here=is_read_here),
        _results(facts),
        _checks(report, precisions),
        _training(facts),
    ]
    head = f"---\n{_head(facts, to)}---\n\n"
    return head + "\n\n".join(section for section in sections if section) + "\n"


def _head(facts: CardFacts, to: str) -> str:
    """The YAML part."""
    from huggingface_hub import EvalResult, ModelCardData

    measured = [
        (retrieval.question_set or retrieval.label, _usual(retrieval.metrics))
        for retrieval in facts.retrievals
    ]
    measured += [("validation", facts.validation)] if facts.validation else []
    results = [
        EvalResult(
            task_type=_TASK, dataset_type=set_name, dataset_name=set_name, metric_type=name.replace("@", "_at_"), metric_name=name,
            metric_value=round(value, 6),
        )
        for set_name, metrics in measured
        for name, value in metrics.items()
    ]  # fmt: skip
    library = {
        "sentence-transformers": "sentence-transformers",
        "transformers": "transformers",
        "hf-dpr": "transformers",
    }.get(to)
    data = ModelCardData(
        license=facts.license,
        base_model=facts.base_model,
        library_name=library or ("onnx" if to == "onnx" else None),
        pipeline_tag="sentence-similarity" if to == "sentence-transformers" else "feature-extraction",
        tags=["dense-retrieval", "bi-encoder", *([] if library == to else [to])],
        model_name=facts.name if results else None,
        eval_results=results or None,
    )
    return f"{data.to_yaml()}\n"


def _what(model: BiEncoder) -> str:
    settings, text = model.settings, model.tensorizer.text
    config = model.ctx_model.config
    layers = getattr(config, "num_hidden_layers", 0)
    millions = sum(tensor.numel() for tensor in model.weights().values()) / 1e6
    towers = (
        "one tower for questions and passages"
        if settings.shared
        else "a tower for questions and one for passages"
    )
    if settings.static_questions:
        towers = "a table of token vectors for questions and a tower for passages"
    lines = [
        f"A bi-encoder for dense retrieval: {towers}. The score of a passage is the dot product of its vector"
        " and that of the question"
        + (", which have length 1 (cosine similarity)." if settings.normalize else "."),
        "",
        "| | |",
        "|---|---|",
        f"| architecture | {config.model_type}, {layers} layers, {millions:,.1f} million weights |",
        f"| vectors | {model.dimension} dimensions; pooling: {settings.pooling}" + _more(settings) + " |",
        f"| longest question | {model.tensorizer.question_length} tokens |",
        f"| longest passage | {settings.sequence_length} tokens, title included |",
    ]
    prompts = {"prompt of questions": text.query_prompt, "prompt of passages": text.passage_prompt}
    prompts |= {f"prompt {name}": prompt for name, prompt in sorted(text.prompts.items())}
    prompts["title and text"] = text.title_template
    lines += [f"| {name} | {_code(prompt)} |" for name, prompt in prompts.items() if prompt]
    return "\n".join(lines)


def _more(settings: Any) -> str:
    activation = " and its hyperbolic tangent" if settings.projection_activation == "tanh" else ""
    return (f"; projection to {settings.projection_dim}{activation}" if settings.projection_dim else "") + (
        f"; cut to the first {settings.dimensions}" if settings.dimensions else ""
    )


def _code(text: str) -> str:
    """A text as code inside a table."""
    return "`" + text.replace("\n", "\\n").replace("|", "\\|").replace("`", "'") + "`"


def _use(usage: str, *, is_read_here: bool) -> str:
    """The other library's lines, and those of this one where it reads the folder."""
    parts = [f"## Use\n\nPATH is this folder, or the name of the repository.\n\n```python\n{usage}```"]
    if is_read_here:
        own = """from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder

model = BiEncoder.load("PATH")
questions = model.encode_questions(["a question"])
passages = model.encode_passages([Passage("A text.", title="A title")])
scores = questions @ passages.T
"""
        parts.append(f"With the toolkit that made it:\n\n```python\n{own}```")
    return "\n\n".join(parts)


def _results(facts: CardFacts) -> str:
    if not facts.retrievals and not facts.validation:
        return ""
    rows = [
        (f"{retrieval.question_set or retrieval.label} ({retrieval.num_questions} questions)", name, value)
        for retrieval in facts.retrievals
        for name, value in _usual(retrieval.metrics).items()
    ]
    rows += [("validation in training", name, value) for name, value in facts.validation.items()]
    return "\n".join(
        [
            "## Measured",
            "",
            "| set | metric | value |",
            "|---|---|---:|",
            *(f"| {a} | {b} | {c:.4f} |" for a, b, c in rows),
        ]
    )


def _usual(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics that ``dpr retrieve`` prints; all where it has none of them."""
    return {name: metrics[name] for name in _USUAL if name in metrics} or metrics


def _checks(report: Sequence[Checked], precisions: Mapping[str, Mapping[str, float]]) -> str:
    lines = []
    if report:
        lines = ["## Checked", "", *(f"This folder was {line}." for line in report)]
    rows = [
        f"| {name} | {found['bytes'] / 1e6:.1f} | {found['top10_overlap']:.3f} |"
        f" {found['least_cosine']:.5f} |"
        for name, found in precisions.items()
        if "top10_overlap" in found
    ]
    if rows:
        found = next(found for found in precisions.values() if "questions" in found)
        lines += [
            "",
            f"Against fp32, on {found['questions']:.0f} questions and {found['passages']:.0f} passages:",
            "",
        ]
        lines += [
            "| numbers | MB | share of the ten best that stay | least cosine |",
            "|---|---:|---:|---:|",
            *rows,
        ]
    return "\n".join(lines).strip()


def _training(facts: CardFacts) -> str:
    lines = [
        f"Trained and exported with dpr {__version__}"
        + (f", seed {facts.seed}." if facts.seed is not None else ".")
    ]
    if facts.command:
        lines += ["", "```", facts.command, "```"]
    if facts.data:
        lines += ["", "| data | fingerprint |", "|---|---|"]
        lines += [f"| {name} | `{found}` |" for name, all_found in facts.data.items() for found in all_found]
    return "\n".join(["## Training", "", *lines])
