// From the form to a request, and from what the server offers to the form.

import { byId, make } from "./dom.js";

const EXAMPLES = {
  copy:
    "Repeat the following text word by word, but write lake where it says river.\n\n" +
    "The old mill stands by the river. In spring the river rises and turns the wheel. " +
    "In summer the river is low and the miller waits. In autumn leaves float down the river.",
  list: "List the numbers from one to twenty in words, one per line.",
  story: "Tell a short story about a lighthouse keeper who finds a bottle on the beach.",
};

const LENGTHS = [1, 2, 3, 4, 5, 7, 10, 15];

const RULES = {
  coupled: "Seed-identical: the text is a function of the seed, with or without drafts.",
  "sample-match": "Seed-identical: the target draws, and a draft is kept where it is that draw.",
  standard: "Exact in law: a draft is kept with probability min(1, p / q).",
  block: "Exact in law: drafts are judged as a block, which never keeps fewer on average.",
  "": "What the server was started with.",
};
const GREEDY = "Temperature 0 is greedy: every exact rule gives the same text.";

/** Offer what a server has. `model` is its entry of `/v1/models`. */
export function offer(model) {
  const about = model.draftproof;
  const names = ["none", ...about.drafters];
  const chosen = about.default_drafter === "none" ? usual(about.drafters) : about.default_drafter;
  byId("drafter").replaceChildren(
    ...names.map((name) => option(name, name === "none" ? "off" : name, name === chosen)),
  );
  const lengths = LENGTHS.map((length) => option(String(length), String(length), false));
  byId("kappa").replaceChildren(option("", "", true), ...lengths);
  byId("max_tokens").max = String(about.context_length - 1);
  const follow = () => {
    const isDefault = byId("drafter").value === about.default_drafter;
    const own = about.chooses_lengths ? "auto" : String(about.num_speculative_tokens);
    byId("kappa").options[0].textContent = isDefault ? own : "its own";
    byId("kappa").disabled = byId("drafter").value === "none";
  };
  byId("drafter").addEventListener("change", follow);
  follow();
}

/** Wire what depends on the form alone. */
export function prepare() {
  const hint = () => {
    const isGreedy = Number(byId("temperature").value) === 0;
    byId("rule-hint").textContent = isGreedy ? GREEDY : RULES[byId("rule").value];
  };
  for (const id of ["rule", "temperature"]) byId(id).addEventListener("input", hint);
  hint();
  for (const chip of document.querySelectorAll("[data-example]")) {
    chip.addEventListener("click", () => {
      byId("prompt").value = EXAMPLES[chip.dataset.example];
      byId("prompt").focus();
    });
  }
  byId("prompt").value ||= EXAMPLES.copy;
}

/** Return the path and the body that the form asks for. */
export function read(modelName) {
  const form = new FormData(byId("form"));
  const isChat = form.get("kind") === "chat";
  const prompt = form.get("prompt");
  const drafter = form.get("drafter");
  const speculation = drafter === "none" ? { num_speculative_tokens: 0 } : { method: drafter };
  if (drafter !== "none" && form.get("kappa")) {
    speculation.num_speculative_tokens = Number(form.get("kappa"));
  }
  if (form.get("rule")) speculation.rejection_sample_method = form.get("rule");
  const body = {
    model: modelName,
    ...(isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
    max_tokens: Number(form.get("max_tokens")),
    temperature: Number(form.get("temperature")),
    top_p: Number(form.get("top_p")),
    top_k: Number(form.get("top_k")),
    seed: seedOf(form.get("seed")),
    stream: true,
    return_trace: true,
    speculative_config: speculation,
  };
  return { path: isChat ? "/v1/chat/completions" : "/v1/completions", body };
}

/** Return the same request without drafts. */
export function withoutDrafts({ path, body }) {
  const { rejection_sample_method: rule } = body.speculative_config;
  const plain = { num_speculative_tokens: 0, ...(rule ? { rejection_sample_method: rule } : {}) };
  return { path, body: { ...body, speculative_config: plain } };
}

// Drawn here where none is given: the server's own have 64 bits, of which a number of
// this language keeps 53, and a seed that was rounded cannot be given again.
function seedOf(text) {
  if (text === "") {
    const [high, low] = crypto.getRandomValues(new Uint32Array(2));
    return (high & 0x1fffff) * 2 ** 32 + low;
  }
  const seed = Number(text);
  if (!Number.isSafeInteger(seed)) {
    throw new RangeError(`the seed is ${text}; expected at most ${Number.MAX_SAFE_INTEGER}`);
  }
  return seed;
}

function usual(drafters) {
  return ["suffix", "ngram", ...drafters, "none"].find(
    (name) => name === "none" || drafters.includes(name),
  );
}

function option(value, text, isSelected) {
  const made = make("option", { value, text });
  made.selected = isSelected;
  return made;
}
