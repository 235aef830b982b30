// The numbers of a run, added up from its rounds.

import { byId, fillFacts, make } from "./dom.js";
import { count, pace, percent, seconds } from "./text.js";

const PARTS = [
  ["draft", "draft", "draft"],
  ["target", "target", "model pass"],
  ["verify", "verify", "verify"],
  ["other", "other-part", "other"],
];

const SENSES = {
  greedy: "Equal to plain greedy decoding, up to the rounding of the model's kernels.",
  "seed-identical": "The text is a function of the seed, up to the rounding of the model's kernels.",
  "exact-in-law": "Every token has the model's own distribution under this policy.",
};

/** One request: its rounds as they come, its result at the end. */
export class Run {
  constructor(request) {
    this.request = request;
    this.traces = [];
    this.arrivals = [];
    this.speculation = null;
    this.finish = null;
  }

  /** Take a chunk; return its round, if it has one. */
  take(choice, now) {
    if (choice.speculation) {
      this.speculation = choice.speculation;
      this.finish = choice.finish_reason;
    }
    if (!choice.trace) return null;
    this.traces.push(choice.trace);
    this.arrivals.push([now, choice.trace.committed.length]);
    return choice.trace;
  }

  get entries() {
    return this.traces.flatMap((trace) => trace.committed.map((entry) => ({ entry, trace })));
  }

  get numTokens() {
    return this.arrivals.reduce((sum, [, tokens]) => sum + tokens, 0);
  }

  /** Tokens per second behind the first round; null where nothing followed it. */
  get pace() {
    const [first, last] = [this.arrivals[0], this.arrivals.at(-1)];
    const elapsed = this.arrivals.length > 1 ? (last[0] - first[0]) / 1000 : 0;
    return elapsed > 0 ? (this.numTokens - first[1]) / elapsed : null;
  }

  /** Kept, judged and drafted tokens by offset, as the server's counters define them. */
  positions() {
    const found = [];
    for (const { drafts } of this.traces) {
      const depth = Math.max(0, ...drafts.map((draft) => depthOf(draft, drafts)));
      const kept = drafts.filter((draft) => draft.verdict === "accepted").length;
      for (let at = 0; at < depth; at++) {
        found[at] ??= { kept: 0, judged: 0, drafted: 0 };
        found[at].drafted += 1;
        found[at].judged += at <= kept;
        found[at].kept += at < kept;
      }
    }
    return found;
  }

  times() {
    const total = Object.fromEntries(PARTS.map(([name]) => [name, 0]));
    for (const trace of this.traces) {
      for (const [name] of PARTS) total[name] += trace.seconds[name];
    }
    return total;
  }
}

function depthOf(draft, drafts) {
  let depth = 1;
  for (let at = draft.parent; at >= 0; at = drafts[at].parent) depth += 1;
  return depth;
}

/** Show a run; `plain` is the run without drafts beside it, or null. */
export function showRun(run, plain) {
  showLabel(run);
  showPace(run, plain);
  showTimes(run.times());
  showPositions(run.positions());
  showTotals(run);
}

function showLabel({ speculation, request }) {
  if (speculation === null) {
    // The label of the run before is not that of this one, which has none yet.
    byId("exactness").replaceChildren(make("span", { class: "none", text: "when it has ended" }));
    byId("exactness-hint").textContent = "";
    fillFacts(byId("run-facts"), [["seed", String(request.body.seed)]]);
    return;
  }
  byId("exactness").textContent = speculation.exactness;
  const sense = Object.keys(SENSES).find((name) => speculation.exactness.startsWith(name));
  byId("exactness-hint").textContent = sense
    ? SENSES[sense]
    : "A rule that changes the law, which the server and this request allow.";
  fillFacts(byId("run-facts"), [
    ["rule", speculation.rule],
    ["seed", String(request.body.seed)],
    ...speculation.notes.map((note) => ["note", note]),
  ]);
}

function showPace(run, plain) {
  byId("pace").textContent = pace(run.pace);
  byId("pace-plain").textContent = pace(plain?.pace ?? null);
  const isKnown = Boolean(run.pace && plain?.pace);
  byId("pace-ratio").textContent = isKnown ? `${(run.pace / plain.pace).toFixed(2)} ×` : "–";
  const crowd = Math.max(0, ...run.traces.map((trace) => trace.batch));
  byId("pace-hint").textContent =
    crowd > 1
      ? `Passes were shared by up to ${crowd} requests, which slows each.`
      : "One run each, from the first token to the last, as this page saw them.";
}

function showTimes(times) {
  const total = PARTS.reduce((sum, [name]) => sum + times[name], 0);
  byId("time-bar").replaceChildren(
    ...PARTS.map(([name, hue]) => make("i", { class: hue, at: total ? times[name] / total : 0 })),
  );
  byId("times").replaceChildren(
    ...PARTS.map(([name, hue, label]) =>
      make(
        "tr",
        {},
        make("td", { class: hue, text: label }),
        make("td", { class: "num", text: total ? seconds(times[name]) : "–" }),
        make("td", { class: "num", text: total ? percent(times[name], total) : "–" }),
      ),
    ),
  );
}

function showPositions(positions) {
  byId("positions").replaceChildren(
    ...positions.map(({ kept, judged, drafted }, at) => {
      const bar = make("i", { at: judged ? kept / judged : 0, "aria-hidden": "true" });
      const rate = make("span", {}, bar, make("b", { text: percent(kept, judged) }));
      return make(
        "tr",
        {},
        make("th", { scope: "row", text: String(at + 1) }),
        make("td", { text: `${count(kept)} / ${count(judged)}` }),
        make("td", { class: "bar" }, rate),
        make("td", { class: "num", text: count(drafted) }),
      );
    }),
  );
  byId("positions-hint").textContent = positions.length
    ? "Judged are the drafts before which all others of their round were kept."
    : "No drafts yet.";
}

function showTotals(run) {
  const drafts = run.traces.flatMap((trace) => trace.drafts);
  const kept = drafts.filter((draft) => draft.verdict === "accepted").length;
  fillFacts(byId("totals"), [
    ["tokens", count(run.numTokens)],
    ["model passes", count(run.traces.length)],
    ["tokens per pass", run.traces.length ? (run.numTokens / run.traces.length).toFixed(2) : "–"],
    ["drafts kept", `${count(kept)} of ${count(drafts.length)} (${percent(kept, drafts.length)})`],
  ]);
}
