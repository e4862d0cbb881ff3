"""Training on a simulated device equals training on a CPU, mixes no devices, and waits for the device where it
has to.

On CUDA the check of the gradient reads what has arrived, by an event that the simulated device does not have.
"""

from typing import Any

import pytest

from tests.simulated.processes import found_by, of_run
from tests.simulated.runs import RUNS

ROUNDING = 1e-4
# A CPU computes some layers in other orders, which moves the last of 8 bits.
OF_HALF_PRECISION = {"bf16": 1e-2, "fp16 with its scaler": 1e-3}

STEP = {"training/stopping.py:FiniteCheck.stop_if_hopeless": 1}
LOG_LINE = {
    "training/metrics.py:TrainingMetrics._totals": 2,
    "training/trainer.py:Trainer.take_metrics": 1,
    "training/stopping.py:FiniteCheck.num_skipped": 1,
    "training/callbacks/batch_metrics.py:GlobalBatchMetrics.on_log": 2,
}
OF_NLL = {"training/validations/dev_sets.py:NllValidation._measured": 2}
OF_RANKS = {"training/validations/dev_sets.py:AverageRankValidation._measured": 2}
OF_SEARCH = {
    "embedding/encode.py:encode_tokens": 2,
    "indexer/exact.py:RunningSearch.__init__": 1,
    "indexer/exact.py:RunningSearch.add": 1,
    "indexer/exact.py:rounding_error": 1,
    "indexer/exact.py:_true_places": 2,
}
LEARNED = {"core/batch.py:Temperature.__float__": 1}
# The attention of transformers asks whether there is any padding.
PADDED = {"models/encoder.py:Encoder._pooled": 2}
DISTINCT = "models/fast/packed.py:_bag_vectors"
BY_ROWS = "training/optimizer.py:RowAdamW._update_rows"

MORE_IN_A_STEP: dict[str, dict[str, int]] = {
    "padded": PADDED,
    "static towers": {DISTINCT: 1, BY_ROWS: 2},
    "static towers, averaged": {DISTINCT: 11, BY_ROWS: 4, "training/optimizer.py:RowAdamW._average": 2},
    "static questions": {DISTINCT: 1, BY_ROWS: 2},
}
MORE_IN_A_VALIDATION: dict[str, dict[str, int]] = {
    "padded": PADDED,
    "loss in blocks": LEARNED,
    "a teacher's scores": LEARNED,
    "static towers": {DISTINCT: 2},
    "static towers, averaged": {DISTINCT: 2},
    "static questions": {DISTINCT: 1},
    "validation by search": OF_SEARCH,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by("runs", tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_that_of_a_cpu(found: dict[str, Any], name: str) -> None:
    cpu, simulated = of_run(found, name)
    tolerance = OF_HALF_PRECISION.get(name, ROUNDING)
    for part in ("curve", "validation", "weights"):
        assert simulated[part] == pytest.approx(cpu[part], rel=tolerance, abs=tolerance), part


@pytest.mark.parametrize("name", OF_HALF_PRECISION)
def test_half_precision_is_another_arithmetic(found: dict[str, Any], name: str) -> None:
    (_, exact), (_, half) = of_run(found, "gradient caching"), of_run(found, name)
    assert half["curve"] != pytest.approx(exact["curve"], rel=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_between_log_lines_a_step_waits_once(found: dict[str, Any], name: str) -> None:
    _, simulated = of_run(found, name)
    expected = STEP | MORE_IN_A_STEP.get(name, {})
    assert simulated["waits"]["step 3"] == expected, "the step before a log line"
    if not RUNS[name].is_resumed:  # the first step puts the counts on the device
        assert simulated["waits"]["step 2"] == expected


def test_the_first_step_also_waits_for_its_counts_and_for_a_reference_of_a_collapse(
    found: dict[str, Any],
) -> None:
    _, simulated = of_run(found, "direct")
    assert simulated["waits"]["step 1"] == STEP | {
        "training/stopping.py:FiniteCheck.begin": 2,
        "training/callbacks/batch_metrics.py:GlobalBatchMetrics.on_step_end": 1,
    }


@pytest.mark.parametrize("name", RUNS)
def test_log_lines_validations_and_checkpoints_wait_for_what_they_write(
    found: dict[str, Any], name: str
) -> None:
    _, simulated = of_run(found, name)
    waits = simulated["waits"]
    has_scale = name.startswith("fp16")
    assert waits["log line"] == LOG_LINE | {"training/trainer.py:Trainer.take_metrics": 1 + has_scale}
    of_dev_sets = OF_RANKS if name == "validation by average rank" else OF_NLL
    assert waits["validation"] == of_dev_sets | MORE_IN_A_VALIDATION.get(name, {})
    assert waits["checkpoint"] == {
        "training/metrics.py:TrainingMetrics._totals": 2,
        "training/metrics.py:TrainingMetrics.begin": 1,
        "training/stopping.py:FiniteCheck.num_skipped": 1,
        "training/checkpointing.py:StateOfRun.collect": simulated["num_weights"] + 2 * has_scale,
        "formats/checkpoints.py:write_tensors": simulated["num_tensors"],
    }
