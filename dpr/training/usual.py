"""What a run has beside its loop: the usual callbacks, and what settings name by import path or by files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.settings import listed
from dpr.training.callbacks.protocol import Callback
from dpr.training.callbacks.usual import usual_callbacks
from dpr.training.settings import TrainingSettings
from dpr.training.user_classes import user_callbacks, user_metrics, user_validation
from dpr.training.validations.dev_sets import dev_validations
from dpr.training.validations.protocol import QuestionMetric, Validation
from dpr.training.validations.retrieval import RetrievalValidation
from dpr.training.validations.retrieval_settings import is_built_in, read_entry


@dataclass(frozen=True)
class Named:
    """The objects behind ``train.callbacks``, ``train.metrics`` and ``train.validation``. They need no data,
    so they are made first."""

    callbacks: Sequence[Callback]
    metrics: Mapping[str, QuestionMetric]
    validations: Sequence[Validation]
    searches: Mapping[int, RetrievalValidation]
    """Those of ``validations`` that search a corpus, by the number of their entry."""

    @classmethod
    def of(cls, settings: TrainingSettings, metrics: Mapping[str, QuestionMetric] | None = None) -> Named:
        """Those that ``settings`` name, with ``metrics`` beside them.

        Raises:
            ConfigError: a name, an entry or an argument cannot be used.
            InputError: a file that an entry names cannot be read.
        """
        train = settings.train
        entries = dict(enumerate(listed(train.validation)))
        searched = {
            number: read_entry(entry, number) for number, entry in entries.items() if is_built_in(entry)
        }
        searches = {
            number: RetrievalValidation(options, precision=train.precision)
            for number, options in searched.items()
        }
        if (
            train.eval_at_start is False
            and (guarded := next((n for n, options in searched.items() if options.guard is not None), None))
            is not None
        ):
            key = f"train.validation[{guarded}].guard={searched[guarded].guard:g}"
            raise ConfigError(f"{key} has no effect with train.eval_at_start=false; leave one of them out")
        validations = [searches.get(number) or user_validation(entry) for number, entry in entries.items()]
        return cls(
            user_callbacks(train.callbacks), user_metrics(train.metrics, metrics), validations, searches
        )

    def check_metric_names(self, settings: TrainingSettings, dev_sets: Sequence[str]) -> None:
        """Refuses metrics to choose by that no validation of a run on these dev sets returns; user-defined
        ones name theirs later.

        Raises:
            ConfigError: lists the names that there are.
        """
        train = settings.train
        over_dev_sets = dev_validations([], settings, metrics=self.metrics) if dev_sets else []
        due = [each for each in over_dev_sets if any(map(each.is_due, range(train.num_train_epochs)))]
        names = [name for each in due for name in each.names_for(dev_sets)]
        if any(number not in self.searches for number in range(len(self.validations))) or not (
            names or self.searches
        ):
            return
        names += [name for search in self.searches.values() for name in search.names()]
        if train.best_metric is not None and train.best_metric not in names:
            raise ConfigError(
                f"train.best_metric={train.best_metric} is not a metric of any validation of this run; choose"
                f" one of {', '.join(names)}"
            )


def with_usual(
    settings: TrainingSettings,
    output_dir: Path,
    validations: Sequence[Validation],
    metrics: Mapping[str, QuestionMetric] | None,
    callbacks: Sequence[Callback],
) -> tuple[Sequence[Validation], Mapping[str, QuestionMetric], list[Callback]]:
    """What is given to a trainer from Python, with the usual callbacks and with what its settings name.

    Raises:
        ConfigError: a setting names what cannot be used.
    """
    named = Named.of(settings, metrics)
    usual = usual_callbacks(settings.train, output_dir, [*named.callbacks, *callbacks])
    return [*named.validations, *validations], named.metrics, usual
