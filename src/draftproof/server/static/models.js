// The model's page: what is loaded, and how full it is.

import { getJson, useKey } from "./api.js";
import { byId, fillFacts, make } from "./dom.js";
import { bytes, count, percent, seconds } from "./text.js";

const EVERY_MS = 2000;

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  look();
});
setInterval(() => {
  if (byId("live").checked && !document.hidden) look();
}, EVERY_MS);
await look();

async function look() {
  try {
    const [model] = (await getJson("/v1/models")).data;
    showModel(model);
    showCache(model.draftproof);
    byId("key-form").hidden = true;
    byId("trouble").textContent = "";
  } catch (error) {
    byId("key-form").hidden = error.status !== 401;
    byId("trouble").textContent = error.message;
  }
  try {
    // It says 503 where the server does not accept requests, and how it is.
    showNow(await (await fetch("/health")).json());
  } catch {
    byId("state").textContent = "cannot be reached";
    byId("now-facts").replaceChildren();
  }
}

function showModel({ id, draftproof: about }) {
  byId("serving").textContent = `${id} · ${about.runtime} · ${about.precision}`;
  byId("name").textContent = about.name;
  fillFacts(byId("model-facts"), [
    ["served as", id],
    ["runtime", about.runtime],
    ["weights", about.precision],
    ["context", `${count(about.context_length)} tokens`],
    ["vocabulary", `${count(about.vocab_size)} tokens`],
  ]);
  const isOff = about.default_drafter === "none";
  byId("drafter").textContent = isOff ? "off unless asked for" : about.default_drafter;
  fillFacts(byId("drafter-facts"), [
    ["drafts per round", isOff ? "0" : lengths(about)],
    ["requests may choose", about.drafters.join(", ") || "none"],
  ]);
}

function lengths(about) {
  const most = String(about.num_speculative_tokens);
  return about.chooses_lengths ? `chosen in each round, at most ${most}` : most;
}

function showCache(about) {
  const cache = about.kv_cache;
  byId("cache-size").textContent = cache ? bytes(cache.total_bytes) : "not reported";
  if (!cache) {
    fillFacts(byId("cache-facts"), [["a token", bytes(about.kv_bytes_per_token)]]);
    byId("fits-hint").textContent = "This runtime does not report its cache.";
    return;
  }
  const { total, held, free, evictable } = cache.pages;
  byId("cache-bar").replaceChildren(
    make("i", { class: "held", at: held / total }),
    make("i", { class: "evictable", at: evictable / total }),
  );
  fillFacts(byId("cache-facts"), [
    ["in use", `${count(held)} of ${count(total)} pages (${percent(held, total)})`],
    ["kept for shared prefixes", `${count(evictable)} pages`],
    ["free", `${count(free)} pages`],
    ["a page", `${count(cache.page_size)} tokens`],
    ["a token", bytes(about.kv_bytes_per_token)],
    ["room for", `${count(cache.total_tokens)} tokens`],
    ["open sequences", count(cache.num_sequences)],
  ]);
  const names = byId("cache-facts").querySelectorAll("dt");
  names[0].className = "key-held";
  names[1].className = "key-evictable";
  byId("fits-hint").textContent =
    `By the pages of the cache. The server runs at most ${count(about.max_running)} at once and ` +
    `lets ${count(about.max_queue)} wait. Speculation reserves room for ` +
    `${count(about.num_speculative_tokens)} drafts of each sequence beforehand.`;
  byId("fits").replaceChildren(
    ...cache.max_concurrency.map(({ num_tokens: tokens, plain, speculative }) =>
      make(
        "tr",
        {},
        make("th", { scope: "row", text: count(tokens) }),
        make("td", { class: "num", text: count(plain) }),
        make("td", { class: "num", text: count(speculative) }),
        make("td", { class: "num", text: percent(plain - speculative, plain) }),
      ),
    ),
  );
}

function showNow(health) {
  byId("state").textContent = health.status;
  fillFacts(byId("now-facts"), [
    ["completions in flight", count(health.num_in_flight)],
    ["step in progress", health.step_s ? seconds(health.step_s) : "none"],
    ["failed steps", count(health.num_failed_steps)],
  ]);
}
