"""The settings that say what a file of training data does not say of itself, for every command that reads one as it is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dpr.cli.plain_arguments import PlainParser

if TYPE_CHECKING:
    from dpr.formats.training_files.rows import ReadOptions

_ROLES = ("question", "positive", "negative", "title", "answers", "label")


def add_read_settings(parser: PlainParser) -> None:
    """Adds corpus, queries, split, min_grade and the column of each role."""
    parser.setting("corpus", type=Path, metavar="FILE", help="passages that rows name by id: TSV, JSON lines or Parquet")
    parser.setting("queries", type=Path, metavar="FILE", help="questions that rows name by id")
    parser.setting("split", default="", metavar="NAME", help="part of a folder (default: train, or the only one)")
    least = "judgements, labels and scores from here on are positives, those of 0 or below hard negatives (default 1, of whole grades)"
    parser.setting("min_grade", type=float, metavar="X", help=least)
    for role in _ROLES:
        parser.setting(role, metavar="COLUMN", help=f"column of the {role}; a.b is key b of column a")


def read_options(options: argparse.Namespace) -> ReadOptions:
    """What was given for them."""
    from dpr.formats.training_files.rows import ReadOptions

    columns = {role: name for role in _ROLES if (name := getattr(options, role))}
    return ReadOptions(options.corpus, options.queries, options.split, options.min_grade, columns)
