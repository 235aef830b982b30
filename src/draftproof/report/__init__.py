"""Pages, tables and figures from traces and benchmark runs.

A report is a value: sections that hold tables and figures. It becomes one HTML file that
needs no network, CSV files and PNG files. Rates stand beside their denominators, an
undefined number is "n/a", and what is pooled or a mean over requests says so.
"""

from draftproof.report.content import Report
from draftproof.report.page import report_page, write_csv, write_png
from draftproof.report.run_sections import run_report
from draftproof.report.trace_sections import trace_report

__all__ = ["Report", "report_page", "run_report", "trace_report", "write_csv", "write_png"]
