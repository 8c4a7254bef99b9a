// A run of a flow: answers, control, and its page as it changes. The drawing's layout never changes.
// Runs of its sub-graphs open in the same page.
import "./page.js";
import { ask, attempt, base, part } from "./api.js";
import { load, oneByOne, showTimes, tell } from "./dom.js";
import { inDialog } from "./manage.js";
import { Stream } from "./stream.js";

const main = document.getElementById("main");
const STALE = "This was answered before: your answer changed nothing. The page shows what is so now.";
const UNSETTLED_MS = 1000;
const REST_MS = 200;
const LOST = "The connection is lost. It is tried again.";
let isLost = false;
let shown = null; // the run on the page: its path, its stream, and the server's text of its parts
const parts = () => main.querySelectorAll("[data-part]");
const keys = new Map(); // of restores that may have been answered: a repeated one is the same run

/** Copy classes and texts of the nodes, taken lines, and dashed ones: the rest is equal. */
function redraw(fresh) {
  const old = document.getElementById("graph");
  if (!old || !fresh) return;
  for (const one of fresh.querySelectorAll(".node, .edge[id]")) {
    const known = old.querySelector(`#${one.id}`);
    if (!known) continue;
    known.setAttribute("class", one.getAttribute("class"));
    const note = one.querySelector(".note");
    if (note) known.querySelector(".note").textContent = note.textContent;
    const href = one.querySelector("a[href]")?.getAttribute("href");
    if (href) known.querySelector("a").setAttribute("href", href);
  }
  old.querySelector("#seen").replaceWith(document.adoptNode(fresh.querySelector("#seen")));
}

const again = oneByOne(async () => {
  const { served, stream } = shown;
  const page = await load(location.href);
  if (served !== shown.served) return; // another run was opened meanwhile
  redraw(page.getElementById("graph"));
  for (const one of parts()) {
    const fresh = page.getElementById(one.id);
    if (served.get(one.id) === fresh.outerHTML) continue; // keep the reader's input
    served.set(one.id, fresh.outerHTML);
    const isIn = one.contains(document.activeElement) && document.activeElement.id;
    one.replaceWith(fresh);
    showTimes(fresh);
    if (isIn) document.getElementById(isIn)?.focus();
  }
  if (main.querySelector("[data-over='1']")) {
    stream?.end();
    lose(false);
  }
  await new Promise((done) => setTimeout(done, REST_MS)); // limits the page requests for a busy run
});

function lose(isSo) {
  if (isSo !== isLost) tell(isSo ? LOST : "");
  isLost = isSo;
}

/** Follow the run that the page has. */
function follow() {
  const run = `/graph-runs/${part(main.dataset.run)}`;
  const served = new Map([...parts()].map((one) => [one.id, one.outerHTML]));
  shown?.stream?.end();
  shown = { run, served, stream: null };
  if (main.querySelector("[data-over='1']")) return;
  const stream = new Stream(`${base}/v1${run}/ledger`, main.dataset.cursor, {
    types: ["step", "end"],
    on: (type) => {
      if (type === "end") stream.end();
      again();
    },
    onState: (isLive) => {
      lose(!isLive);
      if (!isLive) again(); // it may have ended meanwhile
    },
    onRefused: again,
  });
  shown.stream = stream;
}

/** Show the run of an address in place of this one. Its way back, or the way here, gets the focus. */
async function show(href) {
  const from = main.dataset.run;
  const page = await load(href);
  const fresh = page.getElementById("main");
  Object.assign(main.dataset, { run: fresh.dataset.run, cursor: fresh.dataset.cursor });
  main.replaceChildren(...fresh.childNodes);
  document.title = page.title;
  document.querySelector(".crumbs").replaceWith(page.querySelector(".crumbs"));
  isLost = false;
  showTimes(main);
  follow();
  const back = main.querySelector(`.states a[href$="/${CSS.escape(part(from))}"]`);
  (back ?? main.querySelector("[rel=up]"))?.focus();
}

async function enter(link) {
  const href = link.getAttribute("href");
  if (await attempt(main, () => show(href))) history.pushState(null, "", href);
}

follow();
addEventListener("popstate", () => attempt(main, () => show(location.href)));
document.addEventListener("keydown", (event) => {
  const up = main.querySelector("[rel=up]");
  if (event.key === "Escape" && up && !event.target.closest("input, textarea, dialog")) enter(up);
});
setInterval(() => !document.hidden && main.querySelector("[data-unsettled]") && again(), UNSETTLED_MS);

/** Return a form's answer: a choice, a text, or JSON. */
function payload(form, submitter) {
  if (form.elements.json) return JSON.parse(form.elements.json.value);
  const response = submitter?.name === "response" ? submitter.value : form.elements.text?.value;
  if (!response) throw new Error("Write an answer, or choose one.");
  return { response };
}

const DO = {
  answer: (form, submitter) =>
    ask("POST", `${shown.run}/waits/${part(form.closest("[data-wait]").dataset.wait)}`, {
      payload: payload(form, submitter),
    }),
  steer: async (form) => {
    await ask("POST", `${shown.run}/steer`, { message: form.elements.message.value });
    form.reset();
  },
  pause: () => ask("POST", `${shown.run}/pause`, {}),
  resume: () => ask("POST", `${shown.run}/resume`),
  cancel: () => ask("POST", `${shown.run}/cancel`, { reason: "cancelled on its page" }),
  keep: async (form) => {
    await ask("POST", `${shown.run}/snapshots`, { name: form.elements.name.value });
    form.reset();
  },
  restore: (button) => restore(button.closest("[data-snapshot]").dataset.snapshot, false),
  delete: (button) => {
    const one = button.closest("[data-snapshot]");
    const name = (form) => (form.querySelector(".reason").textContent = one.querySelector("strong").textContent);
    inDialog("delete", () => deleteSnapshot(one.dataset.snapshot), name);
  },
};

async function deleteSnapshot(snapshot) {
  await ask("DELETE", `/graph-snapshots/${part(snapshot)}`);
  again();
}

/** Begin a run with a snapshot, and open it. If the flow has changed, ask whether to do it anyway. */
async function restore(snapshot, force) {
  if (!keys.has(snapshot)) keys.set(snapshot, [...crypto.getRandomValues(new Uint32Array(4))].join("-"));
  const path = `/graph-snapshots/${part(snapshot)}/restore`;
  try {
    const made = await ask("POST", path, { force }, { "idempotency-key": keys.get(snapshot) });
    keys.delete(snapshot);
    location.assign(`${base}/graph-runs/${part(made.run)}`);
  } catch (error) {
    if (error.code !== "spec_changed") throw error;
    const reason = (form) => (form.querySelector(".reason").textContent = error.detail);
    inDialog("force", () => restore(snapshot, true), reason);
  }
}

async function act(element, submitter) {
  await attempt(element, async () => {
    try {
      await DO[element.dataset.do](element, submitter);
    } catch (error) {
      throw error.code === "stale_resume" ? new Error(STALE) : error;
    }
  });
  again();
}

main.addEventListener("submit", (event) => {
  event.preventDefault();
  act(event.target, event.submitter);
});
main.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-do]");
  if (button) act(button);
  const link = event.target.closest("a[data-inside][href]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  enter(link);
});
main.addEventListener("change", (event) => {
  if (event.target.id === "scrub") location.search = `?step=${event.target.dataset.places.split(" ")[event.target.value]}`;
});
