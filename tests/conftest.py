"""What every test gets: no network, fixed seeds, torch left as it was found, GPU tests skipped where there is
no GPU."""

import atexit
import gc
import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Before anything imports a library that reads these at import time. Inherited by child processes.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_DISABLE_TELEMETRY="1",
    HAYSTACK_TELEMETRY_ENABLED="False",
)

# Modules and tests are never garbage: none is looked for while they are loaded, nor among them afterwards.
gc.disable()

# Processes that tests start compile nothing that another one has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A cache folder of this run alone, for every process of it.
if "DPR_TESTS_CACHE" not in os.environ:
    for left in Path(tempfile.gettempdir()).glob("dpr-tests-*-*"):  # of runs that were killed
        if (
            (owner := left.name.split("-")[2]).isdecimal()
            and Path("/proc/self").exists()
            and not Path("/proc", owner).exists()
        ):
            shutil.rmtree(left, ignore_errors=True)
    os.environ["DPR_TESTS_CACHE"] = os.environ["DPR_CACHE"] = tempfile.mkdtemp(
        prefix=f"dpr-tests-{os.getpid()}-"
    )
    atexit.register(shutil.rmtree, os.environ["DPR_CACHE"], ignore_errors=True)

import hypothesis
import numpy as np
import pytest
import torch

import dpr.evaluation.report as page
from tests.helpers import quick
from tests.helpers.examples import IS_THOROUGH
from tests.helpers.no_network.sitecustomize import block_connections
from tests.helpers.slow_tests import is_slow

# ``make test`` tries the same examples every time, so that it fails for a change alone; ``make fuzz`` looks for
# others.
hypothesis.settings.register_profile("repeatable", derandomize=True)
if not IS_THOROUGH:
    hypothesis.settings.load_profile("repeatable")

block_connections()  # they leave this machine never
page.curves_svg = quick.DRAWN  # for tests that import it; others have none, see pytest_runtest_setup

REPOSITORY = Path(__file__).resolve().parents[1]
# The same in every Python that a test starts.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(REPOSITORY / "tests/helpers/no_network"), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="leave out what tests/helpers/slow_tests.py says is slow"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        left_out = [item for item in items if is_slow(item.nodeid)]
        items[:] = [item for item in items if not is_slow(item.nodeid)]
        config.hook.pytest_deselected(items=left_out)
    # Files with most slow tests begin, so that no worker is left with a long one when the others have ended.
    slow = Counter(item.nodeid.partition("::")[0] for item in items if is_slow(item.nodeid))
    items.sort(key=lambda item: slow[item.nodeid.partition("::")[0]], reverse=True)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of modules, which train."""
    page.curves_svg = quick.DRAWN if item.path.name.startswith("test_report") else quick.no_chart


@pytest.fixture(autouse=True)
def fixed_seeds_and_torch_state() -> Iterator[None]:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    dtype, threads, deterministic = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands send messages to the standard error of their time, which pytest closes after the test."""
    logger = logging.getLogger("dpr")
    before = logger.handlers[:], logger.level, logger.propagate
    names = ("TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS")  # set for ranks that are to be silent
    quiet = {name: os.environ.pop(name, None) for name in names}
    yield
    for name, value in quiet.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the repository; under CI its absence is a failure, elsewhere a
    skip."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        message = "no ../shared/data beside the repository"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder
