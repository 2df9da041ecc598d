"""The report: a static site of verdicts that opens from disk, with no network and no server.

`build` writes `index.html` (every method with its claims as lettered verdicts), a page a method, each
method's cells as CSV with its record as JSON and its charts as SVG, and one script that all pages share.

    wording  numbers and verdicts in words
    forest   effects with their intervals, placed about the threshold
    charts   a record's Vega-Lite specifications, made safe to show
    cells    a record's cells as a table
    view     a method's card and record as the templates read them
    site     the files
"""

from assay.report.site import build

__all__ = ["build"]
