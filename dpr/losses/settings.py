"""Settings of the objective: the weights of its terms and their parameters. They are part of the node ``loss``
of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import (
    CONTENT,
    IDENTITY,
    Rule,
    Settings,
    check_type,
    listed,
    setting,
    split_entry,
)

_WEIGHTS = ("nll_weight", "symmetric_weight", "kl_weight", "margin_mse_weight")


@dataclass
class ObjectiveSettings(Settings):
    """Terms of the objective and their weights (docs/numerics.md, section 1)."""

    nll_weight: float = setting(1.0, least=0, on_resume=IDENTITY)
    """Weight of the negative log-likelihood of the positive among the candidates of the global batch."""
    symmetric_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the negative log-likelihood of the question among all questions of the global batch, given
    its positive."""
    kl_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the KL divergence between the teacher's and the model's distributions over the passages of
    each question."""
    teacher_temperature: float = setting(1.0, above=0, on_resume=IDENTITY)
    """Divides the teacher's scores in the KL divergence."""
    margin_mse_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the squared difference of the model's and the teacher's margins: the positive's score minus
    another passage's."""
    margin_mse_scale: float = setting(1.0, above=0, on_resume=IDENTITY)
    """Multiplies the teacher's margins. The model's margins are those of its scores before
    loss.temperature."""
    teacher: Any = setting(None, on_resume=CONTENT, path="input")
    """Model to distil: a folder of a model with the same tokenizer, or vector shards of any model over the
    passages (dpr embed; a pattern or a list; docs/static_encoders.md). Training also learns its vectors of
    the same texts; those of passages only if their tower is trained. With nll_weight=0, texts suffice. Absent
    = none."""
    guide: list[str] | None = setting(None, on_resume=CONTENT, path="input")
    """Vector shards of another model (dpr embed) over the passages, as a false-negative filter: passages
    whose cosine with a question's positive exceeds guide_threshold are masked for it; absent = no filter."""
    guide_threshold: float = setting(0.9, least=-1, most=1, on_resume=IDENTITY)
    """Cosine of two guide vectors above which their passages are treated as equal."""
    dimensions: list[int] | None = setting(None, unit="dimensions", least=1, on_resume=IDENTITY)
    """Matryoshka: prefix lengths of the vectors; the objective is summed over all of them. Absent = the whole
    vectors only."""
    terms: Any = setting(None, on_resume=IDENTITY)
    """User-defined terms in addition to these: module:Class (docs/extending.md), one or a list. Each has
    weight 1, or {use: module:Class, weight: 0.5}; other keys are arguments of the class."""

    @property
    def uses_teacher_scores(self) -> bool:
        """Returns whether a term reads teacher scores."""
        return self.kl_weight > 0 or self.margin_mse_weight > 0

    def user_terms(self) -> list[tuple[float, dict[str, Any]]]:
        """Returns the entries of ``terms``: the weight of each, and a mapping that names its class and
        arguments.

        Raises:
            ConfigError: an entry is not a user-defined term, or its weight is not above 0.
        """
        entries = []
        for given in listed(self.terms):
            path, arguments = split_entry(given, setting="loss.terms")
            weight = arguments.pop("weight", 1.0)
            if ":" not in path:
                own = f"; its weight is loss.{path}_weight" if f"{path}_weight" in _WEIGHTS else ""
                raise ConfigError(f"loss.terms={path} is not a user-defined term, module:Class{own}")
            check_type(f"loss.terms={path}: weight", weight, float)
            Rule(above=0).check(f"loss.terms={path}: weight", weight)
            entries.append((float(weight), {"use": path, **arguments}))
        return entries

    def changed(self) -> dict[str, Any]:
        """Returns the settings of the objective that differ from their defaults. If there are none, the
        objective is the negative log-likelihood alone."""
        values = asdict(self.part(ObjectiveSettings))
        default = asdict(ObjectiveSettings())
        return {name: value for name, value in values.items() if value != default[name]}

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if not self.kl_weight:
            yield "teacher_temperature"
        if not self.margin_mse_weight:
            yield "margin_mse_scale"
        if not self.nll_weight:
            yield "guide"
        if not self.nll_weight or self.guide is None:
            yield "guide_threshold"

    def check_objective(self, prefix: str) -> None:
        """Checks that the terms can be combined.

        Raises:
            ConfigError: every weight is 0, ``teacher`` and ``dimensions`` are both set, or ``dimensions`` is
                empty or repeats a number.
        """
        if not (any(getattr(self, name) for name in _WEIGHTS) or self.teacher or self.user_terms()):
            raise ConfigError(
                f"every term of the objective has weight 0; set {prefix}nll_weight, {prefix}kl_weight or"
                " another above 0"
            )
        if self.teacher and self.dimensions:
            raise ConfigError(
                f"{prefix}teacher={self.teacher} and {prefix}dimensions={self.dimensions} are mutually"
                " exclusive, a teacher's vectors are learned whole; leave one of them out"
            )
        widths = self.dimensions
        if widths is not None and (not widths or len(set(widths)) < len(widths)):
            raise ConfigError(f"{prefix}dimensions={widths} is empty or names a number twice")
