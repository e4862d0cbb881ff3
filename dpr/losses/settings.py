"""Terms of the objective: which there are, their weights and their parameters. They are part of the node
``loss`` of the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from dpr.core.errors import ConfigError
from dpr.core.settings import CONTENT, IDENTITY, Settings, listed, setting, split_entry

TERMS = ("nll", "symmetric", "kl", "margin_mse")
_REPLACED_BY_TERMS = (*(f"{name}_weight" for name in TERMS), "teacher")


class TermEntry(NamedTuple):
    """One term: a name of ``TERMS``, or module:Class with the arguments of that class."""

    name: str
    weight: float
    arguments: dict[str, Any]


@dataclass
class DistillationSettings(Settings):
    """Terms that compare a question's scores for its own passages, or vectors, with those of a teacher."""

    kl_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the KL divergence between the teacher's and the model's distributions over a question's own
    passages."""
    kl_temperature: float | None = setting(None, above=0, on_resume=IDENTITY)
    """Divides the model's scores in the KL divergence; absent = loss.temperature."""
    teacher_temperature: float = setting(1.0, above=0, on_resume=IDENTITY)
    """Divides the teacher's scores in the KL divergence."""
    margin_mse_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the squared difference of the model's and the teacher's margins: the positive's score minus
    another passage's."""
    margin_mse_scale: float = setting(1.0, above=0, on_resume=IDENTITY)
    """Multiplies the teacher's margins; the model's are those of its scores before loss.temperature."""
    teacher: Any = setting(None, on_resume=CONTENT, path="input")
    """Folder of a model with the same tokenizer, whose vectors of the same texts are learned too, of passages
    only where their tower is trained; or vector shards of any model (dpr embed; a pattern or a list) over the
    passages (docs/students.md). Absent = none."""
    embedding_weight: float = setting(1.0, above=0, on_resume=IDENTITY)
    """Weight of the squared distance between the model's vectors and those of loss.teacher; with nll_weight=0
    texts alone are learned from."""


@dataclass
class RivalSettings(Settings):
    """What the positive is compared with in the NLL, and what weighs how much in it and in the symmetric
    term."""

    in_batch_negatives: bool = setting(True, on_resume=IDENTITY)
    """false: a question's positive competes with the question's own negatives only, not with the passages of
    other questions."""
    positives: str = setting("one", choices=("one", "any", "each"), on_resume=IDENTITY)
    """one: the positive drawn for the question. any, each: all known positives of the question that are in
    the pool; any: the sum of their softmax shares must rise; each: every one must beat the negatives."""
    hardness: float = setting(0.0, least=0, on_resume=IDENTITY)
    """A negative with score x (before loss.temperature) weighs exp(hardness * x) times as much in the
    denominator; 0 = all the same."""
    false_negative_margin: float | None = setting(None, on_resume=IDENTITY)
    """Negatives that score higher than the positive by more than this (before loss.temperature) are masked,
    as likely positives; absent = none is."""
    guide: list[str] | None = setting(None, on_resume=CONTENT, path="input")
    """Vector shards of another model (dpr embed) over the passages: those whose cosine with a question's
    positive exceeds guide_threshold are masked for it; absent = none is."""
    guide_threshold: float = setting(0.9, least=-1, most=1, on_resume=IDENTITY)
    """Cosine of two guide vectors above which their passages are taken for one."""


@dataclass
class ObjectiveSettings(DistillationSettings, RivalSettings):
    """Terms of the objective and their weights (docs/numerics.md, section 1)."""

    nll_weight: float = setting(1.0, least=0, on_resume=IDENTITY)
    """Weight of the negative log likelihood of the positive."""
    symmetric_weight: float = setting(0.0, least=0, on_resume=IDENTITY)
    """Weight of the negative log likelihood of the question among all questions of the pool, given its
    positive."""
    terms: Any = setting(None, on_resume=IDENTITY)
    """The terms, in place of the four weights: nll, symmetric, kl, margin_mse, or user-defined, module:Class
    (docs/training.md); one or a list, each of weight 1 or {use: nll, weight: 0.5}, with the arguments of a
    class beside them. Absent = those with a weight above 0."""
    dimensions: list[int] | None = setting(None, unit="dimensions", least=1, on_resume=IDENTITY)
    """Matryoshka: the objective is taken over the first so many dimensions of the vectors, for each number
    listed; absent = over all."""

    @property
    def uses_teacher(self) -> bool:
        """Whether a term reads teacher scores."""
        return self.weight_of("kl") > 0 or self.weight_of("margin_mse") > 0

    def entries(self) -> list[TermEntry]:
        """The terms in effect.

        Raises:
            ConfigError: an entry of ``terms`` is none.
        """
        if self.terms is None:
            weights = {name: getattr(self, f"{name}_weight") for name in TERMS}
            weights["embedding"] = self.embedding_weight if self.teacher else 0.0
            return [TermEntry(name, weight, {}) for name, weight in weights.items() if weight]
        return list(map(_entry, listed(self.terms)))

    def weight_of(self, name: str) -> float:
        """The weight of one of ``TERMS``, or of embedding; 0 where it is not in effect."""
        return next((entry.weight for entry in self.entries() if entry.name == name), 0.0)

    def changed(self) -> dict[str, Any]:
        """The settings of the objective that differ from their defaults; none of them: the negative log
        likelihood alone."""
        default = ObjectiveSettings()
        values = ((item.name, getattr(self, item.name)) for item in fields(ObjectiveSettings))
        return {name: value for name, value in values if value != getattr(default, name)}

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        nll = self.weight_of("nll")
        if not self.weight_of("kl"):
            yield from ("kl_temperature", "teacher_temperature")
        if not self.weight_of("margin_mse"):
            yield "margin_mse_scale"
        if not self.teacher:
            yield "embedding_weight"
        if not nll:
            yield from ("in_batch_negatives", "positives", "guide")
        if not nll or self.guide is None:
            yield "guide_threshold"
        if not nll and not self.weight_of("symmetric"):
            yield from ("hardness", "false_negative_margin")

    def check_objective(self, prefix: str, candidates: str | None) -> None:
        """What the terms need of each other, and of the rule ``candidates``."""
        names = Counter(entry.name for entry in self.entries())
        if twice := next((name for name in TERMS if names[name] > 1), ""):
            raise ConfigError(
                f"{prefix}terms names {twice} twice; give it one weight: {{use: {twice}, weight: 2}}"
            )
        if not names:
            raise ConfigError(
                f"every term of the objective has weight 0; set {prefix}nll_weight, {prefix}kl_weight or"
                " another above 0"
            )
        changed = self.changed()
        for name in _REPLACED_BY_TERMS:
            if self.terms is not None and name in changed:
                raise ConfigError(
                    f"{prefix}{name}={changed[name]} and {prefix}terms are mutually exclusive, both say what"
                    " is learned; leave one of them out"
                )
        if self.teacher and self.dimensions:
            raise ConfigError(
                f"{prefix}teacher={self.teacher} and {prefix}dimensions={self.dimensions} are mutually"
                " exclusive, a teacher's vectors are learned whole; leave one of them out"
            )
        if self.positives != "one" and candidates == "dpr":
            raise ConfigError(
                f"{prefix}positives={self.positives} and {prefix}candidates=dpr are mutually exclusive: dpr"
                f" counts every slot and has one positive; set {prefix}candidates=distinct"
            )
        widths = self.dimensions
        if widths is not None and (not widths or len(set(widths)) < len(widths)):
            raise ConfigError(f"{prefix}dimensions={widths} is empty or names a number twice")


def _entry(given: Any) -> TermEntry:
    name, arguments = split_entry(given, setting="loss.terms")
    weight = arguments.pop("weight", 1.0)
    if name not in TERMS and ":" not in name:
        raise ConfigError(f"loss.terms={name} is not known; choose of {', '.join(TERMS)}, or module:Class")
    if type(weight) not in (int, float) or not 0 < weight < float("inf"):
        raise ConfigError(f"loss.terms: the weight of {name} is {weight!r}; it must be a number above 0")
    if name in TERMS and arguments:
        raise ConfigError(
            f"loss.terms: {name} takes no {next(iter(arguments))}; its other settings are keys of loss"
        )
    return TermEntry(name, float(weight), arguments)
