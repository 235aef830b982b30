// The playground: sends the form, shows the rounds as they come, compares with plain decoding.

import { ServerError, getJson, stream, useKey } from "./api.js";
import { compareRuns } from "./compare.js";
import { byId } from "./dom.js";
import { showItem } from "./explain.js";
import { offer, prepare, read, withoutDrafts } from "./form.js";
import { Run, showRun } from "./numbers.js";
import { several } from "./text.js";
import { TokenView } from "./tokens.js";

const page = { model: "", run: null, plain: null, abort: null };

const views = {
  run: new TokenView(byId("tokens"), inspect),
  plain: new TokenView(byId("plain"), inspect),
};

prepare();
wire();
await connect();

function wire() {
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") page.abort?.abort();
  });
  byId("stop").addEventListener("click", () => page.abort?.abort());
  byId("replay").addEventListener("click", replay);
  byId("show-rejected").addEventListener("change", (event) => {
    byId("tokens").classList.toggle("with-rejected", event.target.checked);
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value);
    connect();
  });
  if (matchMedia("(max-width: 50rem)").matches) byId("settings").open = false;
}

/** Ask what is loaded, and offer it. */
async function connect() {
  try {
    const [model] = (await getJson("/v1/models")).data;
    page.model = model.id;
    const { runtime, precision } = model.draftproof;
    byId("serving").textContent = `${model.id} · ${runtime} · ${precision}`;
    offer(model);
    byId("key-form").hidden = true;
    byId("go").disabled = false;
    say("");
  } catch (error) {
    byId("key-form").hidden = error.status !== 401;
    if (error.status === 401) byId("key").focus();
    say(error.message, true);
  }
}

/** Run the form's request. */
async function generate() {
  if (byId("go").disabled) return;
  let request;
  try {
    request = read(page.model);
  } catch (error) {
    say(error.message, true);
    return;
  }
  page.run = new Run(request);
  page.plain = null;
  views.run.clear();
  views.plain.clear();
  byId("plain").hidden = true;
  verdict("Runs the same request with no drafts, and compares the texts token by token.");
  showRun(page.run, null);
  say("Generating.");
  if (!(await follow(page.run, views.run, "busy"))) return;
  const { numTokens, traces } = page.run;
  say(`Done: ${several(numTokens, "token")} in ${several(traces.length, "round")}, ${ending(page.run)}.`);
}

/** Run the last request without drafts, and compare. */
async function replay() {
  page.plain = new Run(withoutDrafts(page.run.request));
  views.plain.clear();
  byId("plain").hidden = false;
  verdict("Replaying without drafts.");
  if (!(await follow(page.plain, views.plain, "replaying"))) {
    verdict("The replay did not end.");
    return;
  }
  const found = compareRuns(page.run, page.plain);
  verdict(found.text, found.isSame ? "same" : "other");
  if (found.at !== null) markOther(found.at);
}

/** Read a run to its end; false where it failed or was stopped. */
async function follow(run, view, state) {
  page.abort = new AbortController();
  busy(state, true);
  try {
    for await (const chunk of stream(run.request.path, run.request.body, page.abort.signal)) {
      for (const choice of chunk.choices) {
        const trace = run.take(choice, performance.now());
        if (trace !== null) view.add(trace);
      }
      showRun(page.run, page.plain);
    }
    return true;
  } catch (error) {
    const isOurs = error.name === "AbortError";
    say(isOurs ? "Stopped." : message(error), !isOurs);
    return false;
  } finally {
    busy(state, false);
    page.abort = null;
  }
}

function busy(state, isBusy) {
  document.body.classList.toggle(state, isBusy);
  byId("go").disabled = isBusy;
  byId("stop").disabled = !isBusy;
  byId("replay").disabled = isBusy || page.run?.speculation == null;
}

function inspect(item, how) {
  const said = showItem(byId("inspector-body"), item);
  byId("inspector-said").textContent = how === "focus" ? said : "";
}

/** Mark where the two texts part, in both. */
function markOther(at) {
  for (const view of [views.run, views.plain]) view.spans()[at]?.classList.add("first-other");
}

function ending({ finish }) {
  return finish === "length" ? "cut at the most tokens" : "ended by the model";
}

function message(error) {
  return error instanceof ServerError ? error.message : "The server cannot be reached.";
}

function say(text, isBad = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", isBad);
}

function verdict(text, kind = "") {
  byId("verdict").textContent = text;
  byId("verdict").className = `verdict ${kind}`;
}
