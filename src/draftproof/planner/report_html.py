"""A plan as one page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from draftproof.errors import ConfigError
from draftproof.planner.acceptance import iid_survival
from draftproof.planner.plan import Plan
from draftproof.planner.rounds import RoundCost
from draftproof.planner.search import RoundTimes, best_kappa

__all__ = ["plan_page"]

#: Colours of lines, told apart by people with any colour vision (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def plan_page(
    plan: Plan, cost: RoundCost, *, title: str, basis: Sequence[str] = (), assets: str | None = None
) -> str:
    """Write the page: speedup surface, crossing with its interval, sensitivity.

    Parameters
    ----------
    plan : Plan
        The decision.
    cost : RoundCost
        The costs it rests on; the sensitivity is computed from them.
    title : str
        Heading.
    basis : sequence of str
        Where the figures come from, a line each.
    assets : str, optional
        JavaScript of plotly; taken from its package when None.

    Returns
    -------
    str
        HTML with everything inside; follows the reader's light or dark setting.

    Raises
    ------
    ConfigError
        If plotly is not installed.
    """
    charts = {
        "surface": _surface(plan),
        "crossing": _by_batch(plan),
        "sensitivity": _sensitivity(plan, cost),
    }
    template = (files("draftproof.planner") / "data" / "plan.html.jinja").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        title=title,
        plan=plan,
        basis=list(basis),
        kappas=list(range(len(plan.batches[0].points))),
        charts=json.dumps(charts, allow_nan=False).replace("</", "<\\/"),
        plotly=(assets if assets is not None else _plotly()),
    )


def _plotly() -> str:
    try:
        offline = import_module("plotly.offline")
    except ImportError as error:
        raise ConfigError(
            "the HTML page needs plotly; hint: pip install 'draftproof[report]'"
        ) from error
    return str(offline.get_plotlyjs())


def _surface(plan: Plan) -> dict[str, Any]:
    batches = [each.batch for each in plan.batches]
    kappas = [point.kappa for point in plan.batches[0].points]
    values = [[each.points[kappa].speedup for each in plan.batches] for kappa in kappas]
    peak = max(1.01, max(max(row) for row in values))
    least = min(0.99, min(min(row) for row in values))
    middle = (1.0 - least) / (peak - least)
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": [str(batch) for batch in batches],
            "y": kappas,
            "z": values,
            "zmin": least,
            "zmax": peak,
            "colorscale": [[0, "#B2182B"], [middle, "#F7F7F7"], [1, "#2166AC"]],
            "colorbar": {"title": {"text": "speedup"}},
            "hovertemplate": "batch %{x}<br>kappa %{y}<br>%{z:.3f}×<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": [str(each.batch) for each in plan.batches],
            "y": [each.best for each in plan.batches],
            "marker": {
                "color": "#111111",
                "size": 8,
                "symbol": "circle-open",
                "line": {"width": 2},
            },
            "name": "best kappa",
            "hovertemplate": "best at batch %{x}: kappa %{y}<extra></extra>",
        },
    ]
    layout = {
        "xaxis": {"title": {"text": "batch"}, "type": "category"},
        "yaxis": {"title": {"text": "drafts per row (kappa)"}, "dtick": 1},
        "showlegend": False,
    }
    return {"data": data, "layout": layout}


def _by_batch(plan: Plan) -> dict[str, Any]:
    batches = [each.batch for each in plan.batches]
    # The kappa that is best at the smallest gaining batch, kept at all batches.
    kappa = plan.fixed_crossing.kappa or 1
    data: list[dict[str, Any]] = []
    for name, number, colour in (
        ("best kappa of each batch", None, _COLOURS[0]),
        (f"kappa {kappa} at every batch", kappa, _COLOURS[1]),
    ):
        points = [
            each.best_point if number is None else each.points[number] for each in plan.batches
        ]
        shade = colour + "33"
        data += [
            {
                "type": "scatter",
                "x": [*batches, *reversed(batches)],
                "y": [p.speedup_high for p in points] + [p.speedup_low for p in reversed(points)],
                "fill": "toself",
                "fillcolor": shade,
                "line": {"width": 0},
                "hoverinfo": "skip",
                "showlegend": False,
            },
            {
                "type": "scatter",
                "x": batches,
                "y": [point.speedup for point in points],
                "name": name,
                "line": {"color": colour},
                "hovertemplate": "batch %{x}: %{y:.3f}×<extra></extra>",
            },
        ]
    shapes: list[dict[str, Any]] = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": 1,
            "y1": 1,
            "line": {"color": "#888888", "dash": "dot"},
        }
    ]
    crossing = plan.fixed_crossing
    ends = [each for each in (crossing.low, crossing.high) if each is not None]
    if crossing.batch is not None and batches[0] < crossing.batch <= batches[-1]:
        shapes.append(
            {
                "type": "line",
                "yref": "paper",
                "x0": crossing.batch,
                "x1": crossing.batch,
                "y0": 0,
                "y1": 1,
                "line": {"color": _COLOURS[1], "dash": "dash"},
            }
        )
        if len(ends) == 2:
            shapes.append(
                {
                    "type": "rect",
                    "yref": "paper",
                    "x0": min(ends),
                    "x1": max(ends),
                    "y0": 0,
                    "y1": 1,
                    "fillcolor": _COLOURS[1],
                    "opacity": 0.12,
                    "line": {"width": 0},
                }
            )
    layout = {
        "xaxis": {"title": {"text": "batch"}, "type": "log"},
        "yaxis": {"title": {"text": "speedup"}},
        "shapes": shapes,
        "legend": {"orientation": "h", "y": 1.12},
    }
    return {"data": data, "layout": layout}


def _sensitivity(plan: Plan, cost: RoundCost) -> dict[str, Any]:
    alphas = np.linspace(0.0, 0.98, 50)
    most = len(plan.batches[0].points) - 1
    batches = [each.batch for each in plan.batches]
    chosen = sorted({batches[0], batches[len(batches) // 2], batches[-1]})
    times = RoundTimes(cost, most, plan.context)
    data = []
    for batch, colour in zip(chosen, _COLOURS, strict=False):
        gains = []
        for alpha in alphas:
            curve = iid_survival(float(alpha), most)
            kappa = best_kappa(times, curve, batch)
            gains.append(float(times.speedups(curve, batch)[kappa]))
        data.append(
            {
                "type": "scatter",
                "x": [float(alpha) for alpha in alphas],
                "y": gains,
                "name": f"batch {batch}",
                "line": {"color": colour},
                "hovertemplate": "rate %{x:.2f}: %{y:.3f}×<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "constant acceptance rate"}},
        "yaxis": {"title": {"text": "speedup at the best kappa"}},
        "legend": {"orientation": "h", "y": 1.12},
    }
    return {"data": data, "layout": layout}
