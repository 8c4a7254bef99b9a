// The page of a conversation. The server renders it; events name the part to fetch again.
import "./page.js";
import { ask, attempt, base, begin, part } from "./api.js";
import { adopt, load, oneByOne, patchChildren, tell } from "./dom.js";
import { clear, finish, finished, say, startOver } from "./live.js";
import { Stream } from "./stream.js";
import { beside } from "./beside.js";
import { inDialog } from "./manage.js";

const main = document.getElementById("main");
const scroll = document.getElementById("scroll");
const text = document.getElementById("text");
const line = document.getElementById("line");
const { app, session } = main.dataset;
const here = `${base}/chat/${part(app)}/${part(session)}`;
const api = `/sessions/${part(session)}`;
const ofApp = `?app=${part(app)}`;
const ENDS = ["run_completed", "run_failed", "run_cancelled", "run_dequeued"];
const PIECES = ["text_delta", "reasoning_delta", "text_snapshot"];
const NEAR_END_PX = 120;
const LONGEST_TITLE = 60;
const LOOK_MS = 5000;

const path = () => document.getElementById("path");
const section = (run) => document.getElementById(`run-${run}`);
const isAtEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_END_PX;
const toEnd = () => (scroll.scrollTop = scroll.scrollHeight);

/** Change the page, and scroll to its end if the reader was there. */
function keepingPlace(change) {
  const stays = isAtEnd();
  change();
  if (stays) toEnd();
}

// --- parts of the page, fetched again ---------------------------------------------------------------------------

const wanted = new Map(); // run → the function that fetches its newest part

/** Fetch a run's part of the page; events during a request cause one more request after it. */
function refresh(run) {
  if (!wanted.has(run)) wanted.set(run, oneByOne(() => renew(run)));
  wanted.get(run)();
}

async function renew(run) {
  const said = finished(section(run));
  const page = await load(`${here}/runs/${part(run)}`);
  const fresh = page.querySelector("section.run");
  const old = section(run);
  if (!old && !fresh.querySelector(".cards > *")) {
    renewState(page); // it has not started
    return;
  }
  const last = [...path().querySelectorAll("section.run")].filter((one) => one !== old).at(-1);
  const { parent, last: node, status } = fresh.dataset;
  if (!old?.dataset.last && (node || status === "running") && parent !== (last?.dataset.last ?? "")) {
    await renewPath(); // it continues from another node: the path has changed
    return;
  }
  keepingPlace(() => {
    const place = old ?? skeleton(run);
    patchChildren(place.querySelector(".cards"), fresh.querySelector(".cards"));
    for (const name of ["status", "parent", "last"]) place.dataset[name] = fresh.dataset[name];
    clear(place, said, ENDS.includes(`run_${fresh.dataset.status}`));
    renewState(page);
  });
}

/** Copy queue, files and the executing run from a page. */
function renewState(page) {
  const [old, fresh] = [document.getElementById("state"), page.getElementById("state")];
  old.dataset.active = fresh.dataset.active;
  patchChildren(old.querySelector("#queue"), fresh.querySelector("#queue"));
  const [files, more] = [old.querySelector("#files"), fresh.querySelector("#files")];
  if (more && files?.open) more.open = true;
  if (files) files.remove();
  if (more) old.append(more);
  showState();
}

async function renewPath() {
  const page = await load(here);
  adopt(page);
  const fresh = page.getElementById("path");
  for (const old of path().querySelectorAll("section.run")) {
    const same = fresh.querySelector(`#${CSS.escape(old.id)}`);
    if (same) same.querySelector(".live").append(...old.querySelector(".live").children);
  }
  path().replaceWith(fresh);
  renewState(page);
  watchEarlier();
  toEnd();
}

function skeleton(run) {
  const made = document.createElement("section");
  made.className = "run";
  made.id = `run-${run}`;
  made.dataset.run = run;
  made.dataset.last = "";
  made.dataset.status = "running";
  made.innerHTML = '<div class="cards"></div><div class="live" aria-live="off"></div>';
  document.getElementById("empty")?.remove();
  path().append(made);
  return made;
}

function showState() {
  const { active } = document.getElementById("state").dataset;
  const listed = document.querySelector("#sessions [aria-current] .status");
  if (listed) {
    listed.textContent = active ? "active" : "idle";
    listed.className = `status ${listed.textContent}`;
  }
  line.replaceChildren();
  if (!active) return;
  const stop = document.createElement("button");
  Object.assign(stop, { type: "button", textContent: "Stop", className: "stop" });
  Object.assign(stop.dataset, { do: "cancel", run: active });
  const waits = section(active)?.querySelector(".approval.waiting");
  line.append(waits ? "It waits for a decision. " : "Working… ", stop);
}

// --- events ----------------------------------------------------------------------------------------------------

function on(type, event) {
  const run = event.run_id;
  if (PIECES.includes(type)) {
    keepingPlace(() => say(section(run) ?? skeleton(run), type, event.payload));
    return;
  }
  const old = section(run);
  if (old && (type === "message" || ENDS.includes(type) || type === "attempt_failed")) finish(old);
  refresh(run);
}

function onState(isLive) {
  document.body.classList.toggle("offline", !isLive);
  if (isLive) startOver(path());
  tell(isLive ? "" : "The connection is lost. Trying again…");
}

new Stream(`${base}/v1${api}/events${ofApp}`, main.dataset.cursor, {
  on,
  onState,
  onRefused: () => location.reload(),
});

/** This stream has no events of child runs, so poll whether one of them waits for a person. */
setInterval(() => {
  const { active } = document.getElementById("state").dataset;
  if (!document.hidden && active && section(active)?.querySelector(".child .status.running, .child .status.waiting")) refresh(active);
}, LOOK_MS);

// --- what a reader does ----------------------------------------------------------------------------------------

async function send(said, parent) {
  const mode = document.getElementById("mode")?.value;
  const body = { text: said, message_id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` };
  if (mode) body.mode = mode;
  if (parent !== undefined) body.parent_node = parent || "root";
  const run = await ask("POST", `${api}/runs${ofApp}`, body);
  refresh(run.run_id);
  if (!main.dataset.title) await name(said.trim().slice(0, LONGEST_TITLE));
}

/** Give the conversation a title: a conversation without one gets its first words. */
async function name(title) {
  await ask("PATCH", `${api}${ofApp}`, { title });
  main.dataset.title = title;
  document.title = `${title} · ${app}`;
  for (const one of document.querySelectorAll(".rows [aria-current] strong, .crumbs [aria-current]")) one.textContent = title;
}

const composer = document.getElementById("composer");
composer.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = text.value;
  if (!said.trim() || composer.dataset.busy) return;
  text.value = ""; // now, because the reader may type the next message while this one is under way
  if (await attempt(composer, () => send(said))) toEnd();
  else text.value = text.value ? `${said}\n${text.value}` : said;
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    text.form.requestSubmit();
  }
});

const ACTIONS = {
  new: () => begin(app),
  cancel: (button) => ask("POST", `${api}/runs/${part(button.dataset.run)}/cancel${ofApp}`, {}),
  switch: async (button) => {
    await ask("PUT", `${api}/active-node${ofApp}`, { node_id: button.dataset.to });
    await renewPath();
  },
  edit: (button) => edit(button.closest("article")),
  rename: () =>
    inDialog("rename", (form) => name(form.elements.name.value.trim()), (form) => {
      form.elements.name.value = main.dataset.title || session;
    }),
  remove: () =>
    inDialog("remove", async () => {
      await ask("DELETE", `${api}${ofApp}`);
      location.replace(`${base}/chat/${part(app)}`);
    }),
  beside: (link) => beside(link.href, `${base}/v1${api}`, ofApp),
};

document.addEventListener("click", (event) => {
  const control = event.target.closest("button[data-do], a[data-do]");
  if (!control || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  attempt(control, () => ACTIONS[control.dataset.do](control));
});

document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-do=decide]");
  if (!form) return;
  event.preventDefault();
  const approve = event.submitter?.value !== "no";
  decide(form, approve);
});

async function decide(form, approve) {
  const card = form.closest("[data-approval]");
  const body = { approve, comment: form.elements.comment.value };
  const isDone = await attempt(form, () => ask("POST", `/approvals/${part(card.dataset.approval)}`, body));
  if (isDone) form.remove();
}

/** Edit a message in its place; sending it starts a branch. */
function edit(article) {
  if (article.querySelector("form")) return;
  const form = document.createElement("form");
  form.innerHTML =
    '<textarea rows="3" aria-label="The message, changed" required></textarea><div class="line"><button type="submit" class="main">Send as a branch</button><button type="button" class="cancel">Leave it</button></div>';
  const [area, said] = [form.querySelector("textarea"), article.querySelector(".said")];
  area.value = said.textContent;
  said.hidden = true;
  article.append(form);
  area.focus();
  const leave = () => {
    form.remove();
    said.hidden = false;
    article.querySelector("[data-do=edit]").focus();
  };
  form.querySelector(".cancel").addEventListener("click", leave);
  form.addEventListener("keydown", (event) => event.key === "Escape" && leave());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await attempt(form, () => send(area.value, article.dataset.parent))) leave();
  });
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const form = document.querySelector("form[data-do=decide]");
  if (event.key === "a" && form) decide(form, true);
  else if (event.key === "d" && form) {
    form.elements.comment.focus();
    form.dataset.denies = "1";
  } else if (event.key === "/") text.focus();
  else return;
  event.preventDefault();
});
// Enter in a reason denies, if it was opened by `d`; it never approves.
document.addEventListener("keydown", (event) => {
  const form = event.target.closest?.("form[data-do=decide]");
  if (!form || event.key !== "Enter" || !event.target.matches("input")) return;
  event.preventDefault();
  if (form.dataset.denies) decide(form, false);
});

// --- earlier messages ------------------------------------------------------------------------------------------

const watcher = new IntersectionObserver(
  (seen) => seen.some((one) => one.isIntersecting) && earlier(),
  { root: scroll, rootMargin: "1200px 0px 0px 0px" },
);

function watchEarlier() {
  const more = document.getElementById("more");
  watcher.disconnect();
  if (more) watcher.observe(more);
}

async function earlier() {
  const more = document.getElementById("more");
  if (!more || more.dataset.busy) return;
  await attempt(more, async () => {
    const page = await load(more.querySelector("a").href);
    adopt(page);
    const height = scroll.scrollHeight - scroll.scrollTop;
    const fresh = page.getElementById("path");
    const first = path().querySelector("section.run");
    if (first && fresh.querySelector(`#${CSS.escape(first.id)}`)) {
      // Merge the sections of a run whose nodes are on both sides of the cut.
      const head = fresh.querySelector(`#${CSS.escape(first.id)}`);
      const known = new Set([...first.querySelectorAll(".cards > *")].map((one) => one.id));
      const cards = [...head.querySelectorAll(".cards > *")].filter((one) => !known.has(one.id));
      first.querySelector(".cards").prepend(...cards);
      first.dataset.parent = head.dataset.parent;
      head.remove();
    }
    more.remove();
    path().prepend(...fresh.children);
    scroll.scrollTop = scroll.scrollHeight - height;
    watchEarlier();
  });
}

adopt(document);
showState();
toEnd();
watchEarlier();
if (matchMedia("(min-width: 900px)").matches) text.focus();
