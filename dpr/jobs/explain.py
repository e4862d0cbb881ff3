"""``dpr explain``: the content of one training step. Nothing is replayed, because rows, passages and tokens
are functions of the settings and the step number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dpr.core.batch import TokenBatch
from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.data.loader import GlobalBatchDataset
from dpr.data.tensorizer import Tensorizer
from dpr.jobs.train import build_model, open_sets
from dpr.losses.candidates import find_candidates
from dpr.training.command_settings import ExplainCommand
from dpr.training.data_sets import resolve_training_files
from dpr.training.identity import stored_value
from dpr.training.plan import make_plan

_SHOWN_LETTERS = 90


def run(config: ExplainCommand) -> None:
    print("\n".join(explain(config)))


def explain(config: ExplainCommand) -> Iterator[str]:
    """Yields the lines about a step: its epoch and global batches, and the rows, questions, passages, masks
    and tokens of each.

    Raises:
        ConfigError: the run has no such step.
    """
    # Only the tokenizer is used, so random weights will do.
    tensorizer = build_model(replace(config, encoder=replace(config.encoder, pretrained=False))).tensorizer
    opened = open_sets(
        resolve_training_files(config.train_datasets, config.datasets), config, config.loss_scale_factors
    )
    sets = [(source, options.agreed(source.name, tensorizer.text)) for source, options in opened]
    stored = stored_value(config.output_dir, config, "train.global_batch_size")
    global_batch_size = config.train.global_batch_size or int(stored) or config.train.batch_size
    plan = make_plan(sets, tensorizer, config, global_batch_size=global_batch_size, ranks=Ranks())
    per_epoch = plan.steps_per_epoch
    total = plan.total_steps
    if config.step > total:
        raise ConfigError(f"step={config.step}, but the run has {total} steps ({per_epoch} to an epoch)")
    (epoch, in_epoch), keys = divmod(config.step - 1, per_epoch), plan.batches_of(config.step - 1)
    yield (
        f"step {config.step} of {total}: epoch {epoch} (step {in_epoch + 1} of {per_epoch}),"
        f" {len(keys)} global batch{'es' if len(keys) > 1 else ''}"
    )
    for key in keys:
        yield from _global_batch(plan.dataset, key, tensorizer, config.candidates(), config.questions)


def _global_batch(
    dataset: GlobalBatchDataset, key: tuple[int, int], tensorizer: Tensorizer, rule: str, most: int
) -> Iterator[str]:
    rows = dataset.read(dataset.iterator.global_batch(*key))
    batch = dataset.collator(rows)
    width = len(batch.context_valid) // len(batch)
    yield ""
    parts = {
        number: [row.number for row in rows if row.dataset == number]
        for number in sorted(set(batch.datasets))
    }
    for number, members in parts.items():
        name = (
            f"global batch {key[1]}: {len(members)} questions of"
            if number == min(parts)
            else f"  and {len(members)} questions of"
        )
        options = dataset.options[number]
        text = tensorizer.text
        prefixes = {
            "questions": text.question_prompt(options.prompt) + (options.query_prefix or ""),
            "passages": text.passage_prompt + (options.passage_prefix or ""),
        }
        shown = "".join(f", {prefix!r} before {side}" for side, prefix in prefixes.items() if prefix)
        yield f"{name} {dataset.sources[number].name}, rows {_listed(members)}{shown}"
    yield (
        f"  {int(batch.context_valid.sum())} contexts in {len(batch.context_valid)} slots,"
        f" {len(batch.contexts)} different texts; {batch.num_tokens} tokens"
        f" ({batch.questions.tokens.shape[0]} of questions)"
    )
    # Slots of the global batch that are left out for single questions.
    known = batch.known_positive_ids, batch.known_positive_valid
    candidates = find_candidates(rule, batch.positive_idx, batch.context_valid, batch.context_ids, *known)
    columns = [
        sorted({slot for slot in row if slot < len(batch.context_valid)})
        for row in candidates.masked.tolist()
    ]
    questions = _words(batch.questions, tensorizer)
    contexts = _words(batch.contexts, tensorizer)
    for number, row in enumerate(rows[: most or None]):
        assert isinstance(row.sample.question, str)  # sets are opened as text here
        drawn = dataset.collator.select(row)
        of_set = f" of {dataset.sources[row.dataset].name}" if len(parts) > 1 else ""
        yield ""
        yield f"  question {number}, row {row.number}{of_set}: {_short(row.sample.question)}"
        yield f"    tokens    {questions[number]}"
        slots = [("positive", drawn.positive)]
        slots += [("other", passage) for passage in drawn.other_negatives]
        slots += [("hard", passage) for passage in drawn.hard_negatives]
        for index, (role, passage) in enumerate(slots):
            slot = number * width + index
            assert isinstance(passage, Passage)
            named = f"[{passage.id}]" if passage.id is not None else ""
            shown = " ".join(filter(None, [named, passage.title, _short(passage.text)]))
            yield f"    {role:<9} slot {slot}: {shown}"
            yield f"              {contexts[int(batch.context_row[slot])]}"
        masked = columns[number]
        said = (
            f"slots {_listed(masked)}, which also answer it"
            if masked
            else "no other slot is known to answer it"
        )
        yield f"    masked    {said}"
    if most and len(batch) > most:
        yield f"  ... {len(batch) - most} more questions (questions=0 shows all)"


def _words(batch: TokenBatch, tensorizer: Tensorizer) -> list[str]:
    """Returns the token texts of every sequence."""
    sequences = batch.tokens.split(batch.lengths.tolist())
    return [" ".join(tensorizer.tokenizer.convert_ids_to_tokens(sequence.tolist())) for sequence in sequences]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 3] + "..."


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
