// Two runs of one seed, with and without drafts: the same text, or why not.

import { probability, several, visible } from "./text.js";

/** Return whether the texts agree, where they part (null), and a sentence about it. */
export function compareRuns(run, plain) {
  const [ours, theirs] = [run.entries, plain.entries];
  const length = Math.min(ours.length, theirs.length);
  let at = 0;
  while (at < length && ours[at].entry.id === theirs[at].entry.id) at++;
  const isSame = at === ours.length && at === theirs.length;
  const { exactness, rule } = run.speculation;
  const isPromised = /^(seed-identical|greedy)/.test(exactness);
  if (isSame) {
    return { isSame, at: null, text: same(ours.length, run.request.body.seed, exactness, isPromised) };
  }
  const parted = `The texts part at token ${at + 1}${fork(ours[at], theirs[at])}. `;
  if (isPromised) return { isSame, at, text: parted + rounding(exactness) };
  if (exactness === "exact-in-law") return { isSame, at, text: parted + otherCoins(rule) };
  return { isSame, at, text: `${parted}The rule changes the law: ${exactness}.` };
}

function same(length, seed, exactness, isPromised) {
  const found = `The same text: ${several(length, "token")}, seed ${seed}. `;
  return isPromised
    ? `${found}That is what ${exactness} promises.`
    : `${found}Exact in law does not promise this; here the coins fell alike.`;
}

function rounding(exactness) {
  return exactness.endsWith("to the bit")
    ? `The label ${exactness} promises that they do not: please report this.`
    : `The label ${exactness} holds up to the rounding of the model's kernels: passes with and ` +
        "without drafts have other shapes, and two tokens may be that close.";
}

function otherCoins(rule) {
  return (
    `That may be: ${rule} is exact in law, not seed-identical. Every token of both texts has the ` +
    "model's own distribution, but with drafts other coins decide. Under coupled or sample-match " +
    "the text is a function of the seed."
  );
}

function fork(ours, theirs) {
  if (!ours || !theirs) return ", where one ends";
  return `: ${told(ours)} with drafts, ${told(theirs)} without`;
}

function told({ entry, trace }) {
  const p = entry.draft === null ? trace.next.p : trace.drafts[entry.draft].p;
  return `${visible(entry.text)} (p ${probability(p)})`;
}
