"""Leaves out charts of reports and waiting for the disk, in this process and in its forks."""

import html
import os

import dpr.evaluation.report as page

DRAWN = page.curves_svg


def no_chart(title: str, *_: object, **__: object) -> str:
    return f"<svg><text>{html.escape(title)}</text></svg>"


page.curves_svg = no_chart
os.fsync = lambda fd: None
