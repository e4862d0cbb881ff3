"""``report.html``: a run on one page, in one file that loads nothing."""
