"""Every fault planted in the engine: by what it is seen, and after how many draws.

Usage: ``python benchmarks/engine_faults.py [--output FILE] [--docs FILE]``

The law of each faulty engine is enumerated. "Draws" is the number at which the auditor's
omnibus test (min-p of likelihood ratio and total variation, Monte-Carlo calibrated)
raises the alarm with probability 0.99 at a false-alarm rate of 0.001, by simulation;
"directed" the same for the likelihood ratio test against this very fault, the fewest any
test can do with. For some faults the sequential test watches real texts of the engine.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from measure import report
from numpy.typing import NDArray

from draftproof.evidence import Calibrations, SequentialAudit, count_draws, draws_to_detect
from draftproof.evidence.calibration import discrepancies, seed_of
from draftproof.evidence.power import noncentrality
from draftproof.testing.faults import (
    CHECKS,
    COMBINATIONS,
    ENGINE_FAULTS,
    EngineFault,
    Enumeration,
    check_fault,
    draw_texts,
    enumerate_engine,
    nothing_wrong,
    reference_law,
)

ALPHA, POWER = 1e-3, 0.99
#: Faults whose real texts are watched, small and large.
WATCHED = (
    "target drawn again on reject",
    "q without its top-k",
    "rejected token stays in the cache",
    "penalties counted per step",
    "p at temperature 1",
    "lenience 0.9",
    "siblings sorted by confidence",
)
#: Texts of one batch, of one look at the evidence, and most of all.
BATCH, MOST = 64, 6400


def directed_draws(
    probs: NDArray[np.float64], row: NDArray[np.float64], repeats: int = 3000
) -> int:
    """Return the draws that the likelihood ratio test needs, to five per cent."""
    null = np.append(probs, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(row > 0, np.log(row) - np.log(null), -np.inf)
    ratio[(row == 0) & (null == 0)] = 0.0

    def scores(law: NDArray[np.float64], n: int, what: str) -> NDArray[np.float64]:
        counts = seed_of(0, what, n, row.tobytes()).multinomial(n, law / law.sum(), repeats)
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, counts * ratio, 0.0).sum(axis=1)

    def is_enough(n: int) -> bool:
        # The level is kept from above: the bar is one of the null scores.
        bar = np.sort(scores(null, n, "null"))[-1 - int(ALPHA * repeats)]
        return bool((scores(row, n, "biased") > bar).mean() >= POWER)

    high = 1
    while not is_enough(high):
        high *= 2
    low = high // 2
    while high - low > max(1, 0.05 * high):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def of_law(fault: EngineFault, found: Enumeration, calibrations: Calibrations) -> dict[str, Any]:
    """Return distances and numbers of draws of a fault that changes the law."""
    reference = reference_law(fault.scene)
    row = found.row_over(reference)
    probs, kept = reference.probs, row[:-1]
    impossible = float(row[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = float(np.where(kept > 0, kept * np.log(kept / probs), 0.0).sum())
    is_possible = impossible < 1e-9
    chi2 = float(((kept - probs) ** 2 / probs).sum())
    return {
        "tv": found.total_variation(reference),
        "kl_nats": kl if is_possible else None,
        "impossible_mass": 0.0 if is_possible else impossible,
        "outcomes": len(reference),
        "draws": draws_to_detect(reference, row, calibrations, ALPHA, POWER, repeats=200),
        "draws_noncentral_chi2": math.ceil(noncentrality(len(probs) - 1, ALPHA, POWER) / chi2)
        if is_possible
        else None,
        "draws_directed": directed_draws(probs, row),
    }


def row_of(fault: EngineFault, calibrations: Calibrations) -> dict[str, Any]:
    """Return everything that is known of a fault."""
    figures: dict[str, Any] = {
        "name": fault.name,
        "where": fault.where,
        "case": fault.case,
        "scene": fault.scene.name,
        "check": fault.check,
        "description": fault.description,
    }
    if fault.check == "law":
        found = enumerate_engine(fault.scene, fault.plant)
        figures |= of_law(fault, found, calibrations)
        figures["is_caught"] = figures["tv"] > 1e-6
    else:
        finding = check_fault(fault)
        figures |= {"size": finding.size, "is_caught": finding.is_caught}
    return figures


def watch(fault: EngineFault, plant: Any) -> dict[str, Any]:
    """Let the sequential test watch real texts until it raises the alarm."""
    law = reference_law(fault.scene)
    audit = SequentialAudit([law], ALPHA)
    for begin in range(0, MOST, BATCH):
        if audit.add(0, count_draws(law, draw_texts(fault.scene, plant, begin, BATCH))):
            break
    return {
        "scene": fault.scene.name,
        "draws": audit.num_draws,
        "is_alarmed": audit.is_alarmed,
        "log_e_peak": audit.log_peak if math.isfinite(audit.log_peak) else None,
    }


def false_alarms(calibrations: Calibrations, repeats: int = 50_000) -> dict[str, Any]:
    """Return how often the omnibus test blames the right law."""
    law = reference_law(ENGINE_FAULTS[0].scene)
    n = 1000
    counts = seed_of(1, "false alarms").multinomial(n, law.probs, repeats)
    p = calibrations.of(law.probs, n).p_values(*discrepancies(counts, law.probs))
    return {"draws": n, "audits": repeats, "rate": float((p <= ALPHA).mean())}


def right_engine() -> list[dict[str, Any]]:
    """Return what the checks that need no planted fault find in the right engine."""
    seen = {}
    for fault in (*ENGINE_FAULTS, *COMBINATIONS):
        seen.setdefault((fault.scene.name, fault.check), fault)
    rows = []
    for (scene, check), fault in seen.items():
        finding = CHECKS[check](fault.scene, nothing_wrong)
        rows.append(
            {"scene": scene, "check": check, "size": finding.size, "is_caught": finding.is_caught}
        )
    return rows


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value}"


def table(figures: dict[str, Any]) -> str:
    """Return the tables of docs/faults.md."""
    lines = [
        "| fault | part | scene | TV | KL (nats) | draws | directed |",
        "|---|---|---|---|---|---|---|",
    ]
    laws = [row for row in figures["faults"] if row["check"] == "law"]
    for row in laws:
        name = f"{row['name']} ({row['case']})" if row["case"] else row["name"]
        kl = f"∞ ({row['impossible_mass']:.2g} impossible)" if row["kl_nats"] is None else (
            shown(row["kl_nats"])
        )  # fmt: skip
        lines.append(
            f"| {name} | {row['where']} | {row['scene']} | {shown(row['tv'])} | {kl} | "
            f"{shown(row['draws'])} | {shown(row['draws_directed'])} |"
        )
    lines += [
        "",
        "Faults that leave the law of a single request alone, or are too rare for draws:",
        "",
        "| fault | part | scene | seen by | size |",
        "|---|---|---|---|---|",
    ]
    for row in figures["faults"]:
        if row["check"] != "law":
            name = f"{row['name']} ({row['case']})" if row["case"] else row["name"]
            lines.append(
                f"| {name} | {row['where']} | {row['scene']} | {row['check']} | "
                f"{shown(float(row['size']))} |"
            )
    lines += [
        "",
        "Real texts watched by the sequential test (alpha = 0.001, looks every 64 texts):",
        "",
        "| engine | scene | alarm after | log e |",
        "|---|---|---|---|",
    ]
    for row in figures["watched"]:
        after = f"{row['draws']} texts" if row["is_alarmed"] else f"none in {row['draws']}"
        log_e = "∞" if row["log_e_peak"] is None else f"{row['log_e_peak']:.1f}"
        lines.append(f"| {row['name']} | {row['scene']} | {after} | {log_e} |")
    return "\n".join(lines) + "\n"


def write_docs(path: Path, text: str) -> None:
    """Put the tables between the two markers of the page."""
    page = path.read_text(encoding="utf-8")
    begin, end = "<!-- tables -->\n", "<!-- end of tables -->"
    head, tail = page.split(begin)[0], page.split(end)[1]
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--docs", type=Path, help="page whose tables are written anew")
    options = parser.parse_args()
    calibrations = Calibrations(5_000, 0)
    faults = []
    for fault in (*ENGINE_FAULTS, *COMBINATIONS):
        row = row_of(fault, calibrations)
        faults.append(row)
        size = row.get("tv", row.get("size"))
        print(f"{row['where']:8}{row['name']:60}{row['check']:9}{size:8.4f} {row.get('draws', '')}",
              flush=True)  # fmt: skip
    by_name = {fault.name: fault for fault in ENGINE_FAULTS}
    watched = [{"name": name, **watch(by_name[name], by_name[name].plant)} for name in WATCHED]
    watched += [
        {"name": "the right engine", **watch(by_name[name], nothing_wrong)}
        for name in WATCHED[:1] + WATCHED[-1:]
    ]
    laws = [row for row in faults if row["check"] == "law"]
    figures = {
        "benchmark": "engine_faults",
        "alpha": ALPHA,
        "power": POWER,
        "num_faults": len(faults),
        "num_caught": sum(row["is_caught"] for row in faults),
        "smallest_tv": min(row["tv"] for row in laws),
        "median_draws": float(np.median([row["draws"] for row in laws])),
        "most_draws": max(row["draws"] for row in laws),
        "false_alarms": false_alarms(calibrations),
        "right_engine": right_engine(),
        "watched": watched,
        "faults": faults,
    }
    if options.docs is not None:
        write_docs(options.docs, table(figures))
    report(figures, options.output)


if __name__ == "__main__":
    main()
