// What a token's numbers mean, in a sentence, under the rule that judged it.

import { make } from "./dom.js";
import { probability, several, visible } from "./text.js";

const WITHOUT_COINS = new Set(["coupled", "sample-match"]);

/** Show an item in the inspector; return the sentence that a screen reader is told. */
export function showItem(body, item) {
  const why = sentence(item);
  const head = make("div", { class: "token-head" });
  head.append(
    make("span", { class: `t ${item.source}`, text: visible(item.text) }),
    make("b", { text: title(item) }),
    make("span", { class: "hint", text: place(item) }),
  );
  const rows = numbers(item).map(([name, value, kind]) => row(name, value, kind));
  body.replaceChildren(
    head,
    make("dl", { class: "coins" }, ...rows),
    make("p", { class: "hint why", text: why }),
  );
  return `${visible(item.text)}: ${title(item)}. ${why}`;
}

function title({ source, draft }) {
  if (source === "rejected") return draft.verdict === "rejected" ? "rejected" : "not judged";
  return source;
}

function place({ trace, draft, id }) {
  const where = `round ${trace.round}, token id ${id}`;
  if (draft === null) return where;
  const offset = trace.drafts.indexOf(draft) + 1;
  return `${where}, draft ${offset} of ${trace.drafts.length} by ${draft.source}`;
}

/** Return name, value and kind of each number that there is. */
function numbers({ source, draft, trace }) {
  if (draft === null) {
    return trace.next.p === null ? [] : [["p", trace.next.p, "share"]];
  }
  if (draft.verdict === "unjudged") {
    return draft.q === null ? [] : [["q", draft.q, "share"]];
  }
  const found = [["p", draft.p, "share"], ["q", draft.q ?? 1, "share"]];
  if (draft.coin !== null) found.push(["coin", draft.coin, "coin"]);
  return source === "rejected" || draft.p !== null ? found : found.slice(1);
}

function row(name, value, kind) {
  const line = make("span", { class: `rule-line ${kind}`, "aria-hidden": "true" });
  line.append(make("i", { at: Math.min(1, Math.max(0, value)) }));
  return make("div", {}, make("dt", { text: name }), line, make("dd", { text: probability(value) }));
}

function sentence(item) {
  switch (item.source) {
    case "accepted":
      return `${kept(item)}${certain(item.draft)}`;
    case "rejected":
      return item.draft.verdict === "unjudged"
        ? "An earlier draft was rejected, so this one was never judged."
        : `${refused(item)}${certain(item.draft)}`;
    case "recovered":
      return recovered(item);
    case "bonus":
      return `All ${several(item.trace.drafts.length, "draft")} of the round were kept, and the ` +
        "same pass of the model gave one token more.";
    default:
      return item.trace.kappa > 0
        ? "The drafter proposed nothing here; the token was drawn as in plain decoding."
        : "Nothing was to be drafted here; the token was drawn as in plain decoding.";
  }
}

function certain(draft) {
  return draft.q === null ? " The drafter did not draw, it copied: q is 1." : "";
}

function kept({ draft, trace }) {
  if (WITHOUT_COINS.has(trace.rule)) {
    return "Kept: with this seed the model's own draw at this place is the drafted token.";
  }
  if (draft.coin === null) return "Kept: the model chooses the drafted token itself.";
  if (isRatioTest(trace) && draft.coin < ratio(draft)) {
    return `Kept: the coin lies below min(1, p / q) = ${probability(ratio(draft))}.`;
  }
  return `Kept by the rule ${trace.rule}, which weighs a draft together with those before it.`;
}

function refused({ draft, trace }) {
  if (WITHOUT_COINS.has(trace.rule)) {
    return "Rejected: with this seed the model's own draw at this place is another token.";
  }
  if (draft.coin === null) return "Rejected: the model chooses another token here.";
  if (isRatioTest(trace) && draft.coin >= ratio(draft)) {
    return `Rejected: the coin does not lie below min(1, p / q) = ${probability(ratio(draft))}.`;
  }
  return `Rejected by the rule ${trace.rule}, which weighs a draft together with those before it.`;
}

function recovered({ trace }) {
  const refusedDraft = trace.drafts.find((draft) => draft.verdict === "rejected");
  const instead = refusedDraft ? ` instead of ${visible(refusedDraft.text)}` : "";
  const how = WITHOUT_COINS.has(trace.rule)
    ? "It is the model's own draw with this seed"
    : "It was drawn from what p leaves above q, which makes the law that of the model again";
  return `Emitted${instead}. ${how}.`;
}

// Of a chain. In a tree q changes with the siblings that were tried before.
function isRatioTest(trace) {
  return trace.rule === "standard" && trace.drafts.every((one, at) => one.parent === at - 1);
}

function ratio(draft) {
  return Math.min(1, draft.p / (draft.q ?? 1));
}
