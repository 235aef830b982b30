// Draws rounds as tokens, and lets pointer and keyboard point at one.

import { make } from "./dom.js";
import { visible } from "./text.js";

/**
 * The tokens of one run.
 *
 * An item is `{ element, text, source, id, draft, trace }`: the token as text, where it came
 * from, its id, what the trace says of the draft it was or is (null: none), and the round.
 */
export class TokenView {
  #root;
  #items = new WeakMap();
  #current = null;
  #onShow;

  constructor(root, onShow) {
    this.#root = root;
    this.#onShow = onShow;
    root.addEventListener("pointerover", (event) => this.#show(event.target, "pointer"));
    root.addEventListener("focusin", (event) => this.#show(event.target, "focus"));
    root.addEventListener("click", (event) => this.#itemAt(event.target)?.element.focus());
    root.addEventListener("keydown", (event) => this.#move(event));
  }

  clear() {
    this.#root.replaceChildren();
    this.#current = null;
  }

  /** Append what a round drafted and committed. */
  add(trace) {
    const fragment = document.createDocumentFragment();
    const kept = trace.committed.filter((entry) => entry.draft !== null);
    const rest = trace.committed.filter((entry) => entry.draft === null);
    for (const entry of kept) this.#append(fragment, entry, trace);
    for (const draft of trace.drafts) {
      if (draft.verdict !== "accepted") this.#appendRejected(fragment, draft, trace);
    }
    for (const entry of rest) this.#append(fragment, entry, trace);
    this.#root.append(fragment);
    if (this.#current === null) this.#makeCurrent(this.#root.querySelector(".t:not(del)"));
  }

  /** Return the token spans, rejected drafts left out. */
  spans() {
    return [...this.#root.querySelectorAll(".t:not(del)")];
  }

  #append(fragment, entry, trace) {
    const draft = entry.draft === null ? null : trace.drafts[entry.draft];
    const classes = ["t", entry.source];
    // Half a character shows with the token that completes it, an end not at all.
    if (entry.shown === "") classes.push("empty");
    if (entry.shown.startsWith("\n")) classes.push("breaks");
    const element = make("span", { class: classes.join(" "), text: entry.shown, tabindex: "-1" });
    this.#keep(fragment, element, { text: entry.text, source: entry.source, id: entry.id, draft, trace });
  }

  #appendRejected(fragment, draft, trace) {
    const classes = draft.verdict === "rejected" ? "t rejected judged" : "t rejected";
    const element = make("del", { class: classes, text: visible(draft.text), tabindex: "-1" });
    this.#keep(fragment, element, { text: draft.text, source: "rejected", id: draft.id, draft, trace });
  }

  #keep(fragment, element, item) {
    this.#items.set(element, { ...item, element });
    fragment.append(element);
  }

  #itemAt(target) {
    return this.#items.get(target);
  }

  #show(target, how) {
    const item = this.#itemAt(target);
    if (!item) return;
    if (how === "focus") this.#makeCurrent(item.element);
    this.#root.querySelector(".shown")?.classList.remove("shown");
    item.element.classList.add("shown");
    this.#onShow(item, how);
  }

  #makeCurrent(element) {
    if (!element) return;
    this.#current?.setAttribute("tabindex", "-1");
    this.#current = element;
    element.setAttribute("tabindex", "0");
  }

  #move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const ends = { Home: 0, End: -1 }[event.key];
    if (step === undefined && ends === undefined) return;
    const all = [...this.#root.querySelectorAll(".t")].filter((one) => one.getClientRects().length);
    const at = all.indexOf(event.target);
    const next = ends === undefined ? all[at + step] : all.at(ends);
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}
