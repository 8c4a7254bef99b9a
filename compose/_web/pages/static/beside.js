// The panel beside a conversation: it shows a child run, with an event stream of its own.
import { adopt, load, oneByOne, patchChildren } from "./dom.js";
import { clear, finish, finished, say, startOver } from "./live.js";
import { part } from "./api.js";
import { Stream } from "./stream.js";

const panel = document.getElementById("beside");
let stream = null;
let back = null;
let shown = null; // the address of the open child

/** Open a child by its page's address; a running one is followed live. */
export async function beside(href, api, ofApp) {
  close();
  back = document.activeElement;
  shown = href;
  await renew(href);
  if (shown !== href) return;
  panel.hidden = false;
  panel.querySelector(".close").focus();
  const { run, child, over } = panel.querySelector("#child").dataset;
  if (over) return;
  const url = `${api}/runs/${part(run)}/children/${part(child)}/events${ofApp}`;
  const again = oneByOne(() => renew(href));
  stream = new Stream(url, "", {
    onState: (isLive) => isLive && startOver(panel),
    on: (type, event) => {
      const section = panel.querySelector("section.run");
      if (event.run_id !== child || !section) return;
      if (type.endsWith("_delta") || type === "text_snapshot") {
        say(section, type, event.payload);
        return;
      }
      if (type === "message" || type.startsWith("run_")) finish(section);
      if (["run_completed", "run_failed", "run_cancelled"].includes(type)) stream?.end();
      again();
    },
  });
}

async function renew(href) {
  const known = finished(panel.querySelector("section.run"));
  const page = await load(href);
  const fresh = page.getElementById("child");
  const old = panel.querySelector("#child");
  if (shown !== href) return; // it was closed meanwhile
  if (old?.dataset.child !== fresh.dataset.child) {
    adopt(fresh);
    panel.replaceChildren(closer(), fresh);
    return;
  }
  old.querySelector("header").replaceWith(fresh.querySelector("header"));
  patchChildren(old.querySelector(".cards"), fresh.querySelector(".cards"));
  clear(old, known, Boolean(fresh.dataset.over));
}

function closer() {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "close quiet", textContent: "Close" });
  button.addEventListener("click", close);
  return button;
}

function close() {
  stream?.end();
  stream = shown = null;
  panel.hidden = true;
  panel.replaceChildren();
  back?.focus();
}

panel.addEventListener("keydown", (event) => event.key === "Escape" && close());
