"""Metrics as plain text, for terminals and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RETRIEVAL_COLUMNS = {
    "accuracy@1": "top-1",
    "accuracy@5": "top-5",
    "accuracy@20": "top-20",
    "accuracy@100": "top-100",
    "mrr@10": "MRR@10",
    "ndcg@10": "nDCG@10",
}
"""What is shown of a retrieval, in this order, with the headings."""


def format_table(rows: Mapping[str, Mapping[str, float]], columns: Mapping[str, str] | Sequence[str]) -> str:
    """One line per row, one column per metric, three decimals; a metric that a row lacks is shown as ``-``.

    ``columns`` gives the metrics, as a mapping also the heading of each.
    """
    headings = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    cells = [["", *headings.values()]]
    for label, metrics in rows.items():
        cells.append([label, *(f"{metrics[name]:.3f}" if name in metrics else "-" for name in headings)])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]) for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
