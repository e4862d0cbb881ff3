"""README.md of an exported folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpr.core.version import __version__
from dpr.export.towers import weights_tokens
from dpr.models.biencoder import BiEncoder

README = "README.md"
_TEMPLATE = """---
{{ card_data }}
---

# {{ metadata.name }}

A bi-encoder for dense retrieval: {{ towers }}. The score of a passage is the dot product of its vector and that of the question
{%- if settings.normalize %}, which have length 1 (cosine similarity){% endif %}.

| | |
|---|---|
| architecture | {{ architecture }} |
| vectors | {{ dimension }} dimensions; pooling: {{ settings.pooling }}
{%- if settings.projection_dim %}; projection to {{ settings.projection_dim }}{% endif %}
{%- if settings.projection_activation == "tanh" %} followed by tanh{% endif %}
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

With dpr, the toolkit that made it:

```python
from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder

model = BiEncoder.load("PATH")
questions = model.encode_questions(["a question"])
passages = model.encode_passages([Passage("A text.", title="A title")])
scores = questions @ passages.T
```
{%- endif %}
{%- if metadata.validation %}

## Evaluation

Metrics of the validation in training:

| metric | value |
|---|---:|
{%- for name, value in metadata.validation.items() %}
| {{ name }} | {{ "%.4f"|format(value) }} |
{%- endfor %}
{%- endif %}
{%- if checked %}

## Checked

This folder was {{ checked }}.
{%- endif %}

## Training

Trained and exported with dpr {{ version }}{% if metadata.seed is not none %}, seed {{ metadata.seed }}{% endif %}.
{%- if metadata.data %}

| data | fingerprint |
|---|---|
{%- for name, found in metadata.data.items() %}
{%- for each in found %}
| {{ name }} | `{{ each }}` |
{%- endfor %}
{%- endfor %}
{%- endif %}
"""


@dataclass(frozen=True, slots=True)
class CardMetadata:
    """Contents of a model card beyond the model itself; unknown values are left out of the card."""

    name: str
    base_model: str | None = None
    """Name of the model that training started from, if it is one of a hub and not a folder."""
    seed: int | None = None
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Fingerprints of the data, by the role of the data."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the checkpoint's own validation."""


def model_card(model: BiEncoder, metadata: CardMetadata, *, to: str, usage: str, checked: str) -> str:
    """Returns README.md of a folder of the format ``to``.

    Args:
        usage: lines of Python that load it.
        checked: result of the check by the program it is for; empty if there was none.
    """
    from huggingface_hub import ModelCard, ModelCardData

    library = "transformers" if to == "hf-dpr" else to
    data = ModelCardData(
        base_model=metadata.base_model,
        library_name=library,
        pipeline_tag="sentence-similarity" if to == "sentence-transformers" else "feature-extraction",
        tags=["dense-retrieval", "bi-encoder", *([] if library == to and to != "onnx" else [to])],
    )

    settings = model.settings
    text = model.tensorizer.text
    config = model.ctx_model.config
    towers = "a tower for questions and one for passages"
    if settings.static_questions:
        towers = "a static embedding table for questions and a tower for passages"
    elif settings.shared:
        towers = "one tower for questions and passages"
    millions = sum(tensor.numel() for tensor in model.weights().values()) / 1e6
    layers = getattr(config, "num_hidden_layers", 0)
    prompts = {"prompt of questions": text.query_prompt, "prompt of passages": text.passage_prompt}
    prompts |= {f"prompt {name}": prompt for name, prompt in sorted(text.prompts.items())}
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        metadata=metadata,
        settings=settings,
        towers=towers,
        architecture=f"{config.model_type}, {layers} layers, {millions:,.1f} million weights",
        dimension=model.dimension,
        question_length=model.tensorizer.question_length,
        prompts=prompts | {"title and text": text.title_template},
        usage=usage,
        is_read_here=to in ("sentence-transformers", "hf-dpr") and not weights_tokens(model),
        checked=checked,
        version=__version__,
    )
    return f"{card}\n"
