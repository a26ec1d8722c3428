"""Metrics as a person reads them, and the plain-text report of scored prediction files."""

from collections.abc import Sequence

import numpy as np

from tasks.evaluate.predictions import Report
from tasks.reward.metrics import Difference, Metric

_SHOWN = ("acc@1km", "acc@25km", "acc@200km", "acc@750km", "median_km", "geoscore_mean")
_EXAMPLES = 3


def format_metric(name: str, number: float) -> str:
    """A metric as a person reads it: kilometres, points or per cent."""
    if np.isnan(number):
        return "-"
    if name.endswith("_km"):
        return f"{number:,.2f}"
    if name == "tokens_mean":
        return f"{number:,.0f}"
    return f"{number:,.1f}" if name.startswith("geoscore") else f"{100 * number:.2f} %"


def render_report(report: Report) -> str:
    """One file: every metric, its slices, and what could not be read."""
    lines = [f"{report.file}: {report.rows:,} predictions, scored by {report.scored_by}", ""]
    lines.append(f"{'metric':<28}{'value':>12}   {'95 % interval':<23}{'n':>10}")
    for metric in report.metrics:
        value, low, high = (format_metric(metric.name, number) for number in (metric.value, metric.low, metric.high))
        lines.append(f"{metric.name:<28}{value:>12}   {f'{low} .. {high}':<23}{metric.n:>10,}")
    lines += _slices(report)
    if report.parse_failures:
        lines += ["", "answers that could not be read (they count as misses):"]
        unread = report.unread
        for reason, count in report.parse_failures.items():
            lines.append(f"  {reason:<26}{count:>12,}")
            if "answer" in unread.columns:
                of = unread.filter(unread["parse_error"] == reason).head(_EXAMPLES)
                lines += [f"    {_cut(row['id'], 24)}  {_cut(row['answer'] or '', 66)}" for row in of.to_dicts()]
    lines += [f"warning: {warning}" for warning in report.warnings]
    return "\n".join(lines)


def render_side_by_side(reports: Sequence[Report], differences: Sequence[tuple[str, str, Sequence[Difference]]]) -> str:
    """Several files: one column each, then the paired differences of the first and every other."""
    width = max(14, *(len(_stem(report)) + 2 for report in reports))
    lines = [f"{'metric':<26}" + "".join(f"{_stem(report):>{width}}" for report in reports)]
    lines.append(f"{'predictions':<26}" + "".join(f"{report.rows:>{width},}" for report in reports))
    by_name = [{metric.name: metric for metric in report.metrics} for report in reports]
    names = dict.fromkeys(name for metrics_of_file in by_name for name in metrics_of_file)
    for name in names:
        cells = [
            format_metric(name, metrics_of_file[name].value) if name in metrics_of_file else "-"
            for metrics_of_file in by_name
        ]
        lines.append(f"{name:<26}" + "".join(f"{cell:>{width}}" for cell in cells))
    for first, second, metrics in differences:
        lines += ["", f"{second} less {first}, paired by id, {metrics[0].n:,} predictions"]
        lines.append(
            f"{'metric':<16}{'difference':>12}   {'95 % interval':<26}{'McNemar p':>10}{'only 1st':>10}{'only 2nd':>10}"
        )
        for pair in metrics:
            value, low, high = (format_metric(pair.metric, number) for number in (pair.difference, pair.low, pair.high))
            tail = "" if pair.p is None else f"{pair.p:>10.4g}{pair.only_first:>10,}{pair.only_second:>10,}"
            lines.append(f"{pair.metric:<16}{value:>12}   {f'{low} .. {high}':<26}{tail}")
    lines += [f"warning: {_stem(report)}: {warning}" for report in reports for warning in report.warnings]
    return "\n".join(lines)


def _slices(report: Report) -> list[str]:
    if not report.slices:
        return []
    lines = ["", f"{'slice':<28}{'n':>9}" + "".join(f"{name:>15}" for name in _SHOWN)]
    for slice_name, metrics in report.slices.items():
        known: dict[str, Metric] = {metric.name: metric for metric in metrics}
        cells = "".join(f"{format_metric(name, known[name].value):>15}" for name in _SHOWN)
        lines.append(f"{_cut(slice_name, 26):<28}{known['acc@1km'].n:>9,}{cells}")
    return lines


def _stem(report: Report) -> str:
    return report.file.rpartition("/")[2]


def _cut(text: str, length: int) -> str:
    flat = " ".join(str(text).split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
