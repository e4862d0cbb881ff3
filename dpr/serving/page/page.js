// The page of a service: one question, two ways of searching side by side.

import { build, choose, chosen } from "./filters.js";
import { draw } from "./hits.js";

const $ = (id) => document.getElementById(id);
const WAYS = { bm25: "BM25", dense: "model", hybrid: "hybrid" };
const COLUMNS = ["left", "right"];
let indexes = []; // as /info describes them
let running = null; // AbortController of the search under way

// The JSON of an answer. Throws the service's sentence, or why there was none.
async function ask(path, options = {}) {
  const token = sessionStorage.getItem("dpr-token");
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer, value;
  try {
    answer = await fetch(path, { ...options, headers });
    value = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(answer ? `The service answered ${answer.status} without saying why.` : "The service does not answer.");
  }
  if (answer.ok) return value;
  throw Object.assign(new Error(value.error ?? `The service answered ${answer.status}.`), { status: answer.status });
}

function say(text, isBad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", isBad);
}

function refuse(error) {
  if (error.name === "AbortError") return;
  $("login").hidden = error.status !== 401;
  if (error.status === 401) $("token").focus();
  say(error.message, true);
}

async function search(column, question, k, filter, signal) {
  const body = JSON.stringify({ queries: [question], index: $(column).value, k, filter, explain: true });
  const start = performance.now();
  const answer = await ask("search", { method: "POST", body, signal });
  return { hits: answer.results[0], isUnanswered: answer.seems_unanswered[0], ms: performance.now() - start };
}

function label(column) {
  return $(column).selectedOptions[0]?.textContent ?? "";
}

async function run({ remember = true } = {}) {
  running?.abort();
  const question = $("question").value.trim();
  name();
  const filter = chosen();
  $("filtered").textContent = filter ? ` (${Object.keys(filter.metadata).length})` : "";
  if (remember) remembered(question, filter);
  if (!$("left").options.length) return;
  if (!question) return empty();
  document.title = `${question} - dpr search`;
  const own = (running = new AbortController());
  const k = Number($("k").value);
  isStale(true);
  const slow = setTimeout(() => say("Searching ..."), 300);
  try {
    const asked = indexes.length < 2 ? ["left"] : COLUMNS;
    const answers = await Promise.all(asked.map((column) => search(column, question, k, filter, own.signal)));
    if (running !== own) return;
    $("login").hidden = true;
    show(asked, answers, k, Boolean(filter));
  } catch (error) {
    own.abort();
    if (running === own) refuse(error);
  } finally {
    clearTimeout(slow);
    if (running === own) isStale(false);
  }
}

function isStale(value) {
  $("columns").classList.toggle("stale", value);
  $("columns").setAttribute("aria-busy", String(value));
}

// No question, no hits.
function empty() {
  running = null;
  isStale(false);
  document.title = "dpr search";
  for (const column of COLUMNS) {
    $(`hits-${column}`).replaceChildren();
    $(`time-${column}`).textContent = "";
  }
  const passages = Math.max(0, ...indexes.map((index) => index.passages ?? 0));
  say(passages ? `${passages.toLocaleString("en")} passages.` : "");
}

function show(asked, answers, k, isFiltered) {
  const ranks = answers.map(({ hits }) => new Map(hits.map((hit, place) => [hit.id, place + 1])));
  asked.forEach((column, place) => {
    const { hits, isUnanswered, ms } = answers[place];
    $(`time-${column}`).textContent = `${exactness(indexes[$(column).selectedIndex])}${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
    draw($(`hits-${column}`), hits, isUnanswered, asked.length > 1 ? ranks[1 - place] : null, label(COLUMNS[1 - place]));
  });
  const within = isFiltered ? " Only passages that match the filter were searched." : "";
  if (asked.length < 2) return say(within.trim());
  const both = [...ranks[0].keys()].filter((id) => ranks[1].has(id)).length;
  const same = answers[0].hits[0] && answers[0].hits[0].id === answers[1].hits[0]?.id;
  say(`${both} of the first ${k} passages are in both columns; the first one ${same ? "is the same" : "differs"}.${within}`);
}

// Description of an approximate index: its recall, measured when it was built.
function exactness(index) {
  if (index.exact !== false) return "";
  const [name, value] = Object.entries(index.recall?.values ?? {})[0] ?? [];
  return name ? `approximate, ${name} ${value.toFixed(3)}, ` : "approximate, ";
}

// Names above the columns.
function name() {
  for (const column of COLUMNS) {
    $(`name-${column}`).textContent = label(column);
    $(`show-${column}`).textContent = label(column);
  }
}

// Writes the question and the choices into the page's address, so that a comparison can be shared and the back button works. They come
// after "#", which browsers do not send: any length is possible, and no log of a proxy contains the question.
function remembered(question, filter) {
  const values = new URLSearchParams({ q: question, left: $("left").value, right: $("right").value, k: $("k").value });
  if (filter) values.set("filter", JSON.stringify(filter));
  if (`#${values}` !== location.hash) history.pushState(null, "", `#${values}`);
}

function recall() {
  const values = new URLSearchParams(location.hash.slice(1));
  try {
    choose(JSON.parse(values.get("filter")));
  } catch {
    choose(null);
  }
  if (values.has("filter")) $("filter").open = Boolean(chosen());
  $("question").value = values.get("q") ?? "";
  for (const id of ["left", "right", "k"]) {
    if ([...$(id).options].some((option) => option.value === values.get(id))) $(id).value = values.get(id);
  }
}

async function open() {
  let info;
  try {
    info = await ask("info");
  } catch (error) {
    return refuse(error);
  }
  if (!$("login").hidden) $("question").focus();
  $("login").hidden = true;
  if (!info.indexes.length) {
    say("The indexes are being opened ...");
    return void setTimeout(open, 1000);
  }
  indexes = info.indexes.filter((index) => index.mode !== "model");
  if (!indexes.length) return say("This service has no passages to search; it serves embeddings at /v1/embeddings.");
  // Indexes are named by their mode if there is one run, else by the run, with the mode if the run has several.
  const runs = new Set(indexes.map((index) => index.run));
  const names = indexes.map(({ run, mode }) => {
    if (runs.size < 2) return WAYS[mode];
    return indexes.filter((index) => index.run === run).length < 2 ? run : `${run}, ${WAYS[mode]}`;
  });
  for (const column of COLUMNS) {
    $(column).replaceChildren(...indexes.map((index, place) => new Option(names[place], index.name)));
  }
  const isSingle = indexes.length < 2;
  const first = Math.max(indexes.findIndex((index) => index.mode === "bm25"), 0);
  $("left").selectedIndex = first;
  $("right").selectedIndex = isSingle || first ? 0 : 1;
  $("columns").classList.toggle("single", isSingle);
  document.querySelector(".tabs").classList.toggle("single", isSingle);
  $("right").parentElement.hidden = isSingle;
  $("filter").hidden = !build($("panel"), info.metadata, indexes);
  recall();
  run({ remember: false });
}

$("form").addEventListener("submit", (event) => (event.preventDefault(), run()));
for (const id of ["left", "right", "k"]) $(id).addEventListener("change", () => run());
$("fields").addEventListener("change", () => run());
$("fields").addEventListener("submit", (event) => event.preventDefault());
$("clear").addEventListener("click", () => (choose(null), run()));
for (const column of COLUMNS) {
  $(`show-${column}`).addEventListener("click", () => {
    $("columns").dataset.shown = column;
    for (const one of COLUMNS) $(`show-${one}`).setAttribute("aria-pressed", String(one === column));
  });
}
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("dpr-token", $("token").value.trim());
  $("token").value = "";
  open();
});
window.addEventListener("popstate", () => (recall(), run({ remember: false })));
open();
