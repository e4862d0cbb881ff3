"""Commands and calls besides training find on a simulated device what they find on a CPU, mix no devices, and wait
for the device where they have to."""

from typing import Any

import pytest

from tests.simulated.commands import COMMANDS
from tests.simulated.processes import found_by, of_run

# The first 8 bits of a number.
OF_HALF_PRECISION = {"encoding in half precision": 1e-2}

# A look at the device, and each tensor of a model that is loaded, hashed or written.
OF_MODELS = {
    "core/distributed.py:resolve_device",
    "core/distributed.py:placed_like",
    "formats/checkpoints.py:write_tensors",
    "jobs/merge.py:run",
    "models/adapters.py:update_digest",
    "models/biencoder.py:BiEncoder.load",
    "models/cross_encoder.py:CrossEncoder.load",
    "models/properties.py:_small_weights",
    "models/properties.py:padded_states",
    "models/properties.py:agree",
}
ENCODED = "models/biencoder.py:BiEncoder._encoded"
EMBEDDED = "embedding/encode.py:encode_tokens"
SCORED = "models/cross_encoder.py:CrossEncoder.log_odds"


def of_search(*, blocks: int = 1, tiles: int = 1, calls: int = 1) -> dict[str, int]:
    """Waits of a search of ``blocks`` of passages, each compared with ``tiles`` of 512 questions."""
    return {
        "indexer/exact.py:RunningSearch.__init__": calls,
        "indexer/exact.py:RunningSearch.add": calls * blocks,
        "indexer/exact.py:rounding_error": calls * blocks * tiles,
        "indexer/exact.py:_true_places": 2 * calls * blocks * tiles,
    }


WAITS: dict[str, dict[str, int]] = {
    "encoding": {ENCODED: 1},
    "encoding in half precision": {ENCODED: 1},
    "embedding": {EMBEDDED: 3},
    "exact search": of_search(blocks=3, tiles=2),
    "retrieval": {EMBEDDED: 1} | of_search(),
    "evaluation": {EMBEDDED: 2} | of_search(),
    "mining": {EMBEDDED: 2, SCORED: 9} | of_search(),
    "mining without vectors": {EMBEDDED: 2} | of_search(),
    "scoring": {SCORED: 6},
    "scoring by a bi-encoder": {EMBEDDED: 2},
    "merging": {EMBEDDED: 2} | of_search(),
    "a growing corpus": {EMBEDDED: 3} | of_search(calls=2),
    "the service": {EMBEDDED: 1} | of_search(),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by("commands", tmp_path_factory.mktemp("commands"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_finds_what_it_finds_on_a_cpu(found: dict[str, Any], name: str) -> None:
    cpu, simulated = of_run(found, name)
    tolerance = OF_HALF_PRECISION.get(name, 1e-4)
    assert cpu["numbers"] or cpu["texts"]
    assert not cpu["waits"]
    assert simulated["waits"].keys() - OF_MODELS, "nothing was computed on the device"
    assert simulated["numbers"] == pytest.approx(cpu["numbers"], rel=tolerance, abs=tolerance)
    assert simulated["texts"] == cpu["texts"]


@pytest.mark.parametrize("name", WAITS)
def test_a_command_waits_for_its_results_alone(found: dict[str, Any], name: str) -> None:
    _, simulated = of_run(found, name)
    waits = {asked: count for asked, count in simulated["waits"].items() if asked not in OF_MODELS}
    assert waits == WAITS[name]
