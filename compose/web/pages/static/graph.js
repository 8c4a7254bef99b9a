// A run of a flow: answers, control, and its page as it changes. The drawing's layout never changes.
import "./page.js";
import { ask, attempt, base, part } from "./api.js";
import { load, oneByOne, showTimes, tell } from "./dom.js";
import { Stream } from "./stream.js";

const main = document.getElementById("main");
const run = `/graph-runs/${part(main.dataset.run)}`;
const STALE = "This was answered before: your answer changed nothing. The page shows what is so now.";
const UNSETTLED_MS = 1000;
const REST_MS = 200;
const LOST = "The connection is lost. It is tried again.";
let isLost = false;
const parts = () => main.querySelectorAll("[data-part]");
const served = new Map([...parts()].map((one) => [one.id, one.outerHTML]));

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
  }
  old.querySelector("#seen").replaceWith(document.adoptNode(fresh.querySelector("#seen")));
}

const again = oneByOne(async () => {
  const page = await load(location.href);
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

const url = `${base}/v1${run}/ledger`;
const isOver = main.querySelector("[data-over='1']");
const stream = isOver
  ? null
  : new Stream(url, main.dataset.cursor, {
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
    ask("POST", `${run}/waits/${part(form.closest("[data-wait]").dataset.wait)}`, {
      payload: payload(form, submitter),
    }),
  steer: async (form) => {
    await ask("POST", `${run}/steer`, { message: form.elements.message.value });
    form.reset();
  },
  pause: () => ask("POST", `${run}/pause`, {}),
  resume: () => ask("POST", `${run}/resume`),
  cancel: () => ask("POST", `${run}/cancel`, { reason: "cancelled on its page" }),
};

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
});
main.addEventListener("change", (event) => {
  if (event.target.id === "scrub") location.search = `?step=${event.target.dataset.places.split(" ")[event.target.value]}`;
});
