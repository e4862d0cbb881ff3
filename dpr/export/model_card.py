"""The model card of an exported folder: README.md with the head that model hubs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpr.core.version import __version__
from dpr.evaluation.ranking_metrics import shown_names
from dpr.evaluation.report.reading import Retrieval
from dpr.export.tower_files import weights_tokens
from dpr.models.biencoder import BiEncoder

README = "README.md"
_TEMPLATE = """---
{{ card_data }}
---

# {{ facts.name }}

A bi-encoder for dense retrieval: {{ towers }}. The score of a passage is the dot product of its vector and that of the question
{%- if settings.normalize %}, which have length 1 (cosine similarity){% endif %}.

| | |
|---|---|
| architecture | {{ architecture }} |
| vectors | {{ dimension }} dimensions; pooling: {{ settings.pooling }}
{%- if settings.projection_dim %}; projection to {{ settings.projection_dim }}{% endif %}
{%- if settings.projection_activation == "tanh" %} and its hyperbolic tangent{% endif %}
{%- if settings.dimensions %}; cut to the first {{ settings.dimensions }}{% endif %} |
| longest question | {{ question_length }} tokens |
| longest passage | {{ settings.sequence_length }} tokens, title included |
{%- for name, text in prompts.items() if text %}
| {{ name }} | `{{ text|replace("\\n", "\\\\n")|replace("|", "\\\\|")|replace("`", "'") }}` |
{%- endfor %}

## Use

PATH is this folder, or the name of the repository.

```python
{{ usage }}```
{%- if is_read_here %}

With the toolkit that made it:

```python
from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder

model = BiEncoder.load("PATH")
questions = model.encode_questions(["a question"])
passages = model.encode_passages([Passage("A text.", title="A title")])
scores = questions @ passages.T
```
{%- endif %}
{%- if measured %}

## Measured

| set | metric | value |
|---|---|---:|
{%- for label, _, metrics in measured %}
{%- for name, value in metrics.items() %}
| {{ label }} | {{ name }} | {{ "%.4f"|format(value) }} |
{%- endfor %}
{%- endfor %}
{%- endif %}
{%- if checked %}

## Checked

This folder was {{ checked }}.
{%- endif %}

## Training

Trained and exported with dpr {{ version }}{% if facts.seed is not none %}, seed {{ facts.seed }}{% endif %}.
{%- if facts.command %}

```
{{ facts.command }}
```
{%- endif %}
{%- if facts.data %}

| data | fingerprint |
|---|---|
{%- for name, found in facts.data.items() %}
{%- for each in found %}
| {{ name }} | `{{ each }}` |
{%- endfor %}
{%- endfor %}
{%- endif %}
"""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says beyond the model itself; whatever is not known stays out of it."""

    name: str
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
        results = [[each.label, each.file.metrics] for each in self.retrievals]
        return {"results": results} if results else {}


def model_card(model: BiEncoder, facts: CardFacts, *, to: str, usage: str, checked: str) -> str:
    """README.md of a folder of the format ``to``.

    Args:
        usage: lines of Python that load it.
        checked: what the program for it made of the folder; empty where it was not asked.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    # (label, name of the set, metrics): those that dpr retrieve prints, or all where a file has none of them.
    measured: list[tuple[str, str, Mapping[str, float]]] = []
    for each in facts.retrievals:
        found = each.file.metrics
        name = each.file.question_set or each.label
        shown = {metric: found[metric] for metric in shown_names() if metric in found}
        measured.append((f"{name} ({each.file.num_questions} questions)", name, shown or found))
    if facts.validation:
        measured.append(("validation in training", "validation", facts.validation))
    results = [
        EvalResult(
            task_type="information-retrieval",
            dataset_type=name,
            dataset_name=name,
            metric_type=metric.replace("@", "_at_"),
            metric_name=metric,
            metric_value=round(value, 6),
        )
        for _, name, metrics in measured
        for metric, value in metrics.items()
    ]
    library = "transformers" if to == "hf-dpr" else to
    data = ModelCardData(
        base_model=facts.base_model,
        library_name=library,
        pipeline_tag="sentence-similarity" if to == "sentence-transformers" else "feature-extraction",
        tags=["dense-retrieval", "bi-encoder", *([] if library == to and to != "onnx" else [to])],
        model_name=facts.name if results else None,
        eval_results=results or None,
    )

    settings, text, config = model.settings, model.tensorizer.text, model.ctx_model.config
    towers = "a tower for questions and one for passages"
    if settings.static_questions:
        towers = "a table of token vectors for questions and a tower for passages"
    elif settings.shared:
        towers = "one tower for questions and passages"
    millions = sum(tensor.numel() for tensor in model.weights().values()) / 1e6
    layers = getattr(config, "num_hidden_layers", 0)
    prompts = {"prompt of questions": text.query_prompt, "prompt of passages": text.passage_prompt}
    prompts |= {f"prompt {name}": prompt for name, prompt in sorted(text.prompts.items())}
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        facts=facts,
        settings=settings,
        towers=towers,
        architecture=f"{config.model_type}, {layers} layers, {millions:,.1f} million weights",
        dimension=model.dimension,
        question_length=model.tensorizer.question_length,
        prompts=prompts | {"title and text": text.title_template},
        usage=usage,
        is_read_here=to in ("sentence-transformers", "hf-dpr") and not weights_tokens(model),
        measured=measured,
        checked=checked,
        version=__version__,
    )
    return f"{card}\n"
