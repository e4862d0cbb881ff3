"""Loading weights without transformers' report of what a file has besides, which names the pooler that towers leave out on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpr.core.distributed import current_ranks


@contextmanager
def quiet_loading() -> Iterator[None]:
    """A block in which transformers reports errors alone, and in which only the main rank has a progress bar.

    Nothing is lost: ``output_loading_info`` tells the caller which weights are missing.
    """
    from transformers.utils import logging

    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not current_ranks().is_main:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()
