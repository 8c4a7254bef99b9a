// A run below one of the conversation, beside it, with a stream of its own.
import { adopt, load, patchChildren } from "./dom.js";
import { clear, finish, finished, say, startOver } from "./live.js";
import { part } from "./api.js";
import { Stream } from "./stream.js";

const panel = document.getElementById("beside");
let stream = null;
let back = null;

/** Open a child by its page's address; one that runs is followed. */
export async function beside(href, api, ofApp) {
  close();
  back = document.activeElement;
  await renew(href);
  panel.hidden = false;
  panel.querySelector(".close").focus();
  const { run, child, over } = panel.querySelector("#child").dataset;
  if (over) return;
  const url = `${api}/runs/${part(run)}/children/${part(child)}/events${ofApp}`;
  let isAsked = false;
  stream = new Stream(url, "", {
    onState: (isLive) => isLive && startOver(panel),
    on: async (type, event) => {
      const section = panel.querySelector("section.run");
      if (event.run_id !== child) return;
      if (type.endsWith("_delta") || type === "text_snapshot") {
        say(section, type, event.payload);
        return;
      }
      if (type === "message" || type.startsWith("run_")) finish(section);
      if (["run_completed", "run_failed", "run_cancelled"].includes(type)) stream?.end();
      if (isAsked) return;
      isAsked = true;
      setTimeout(async () => {
        isAsked = false;
        await renew(href).catch(() => {});
      }, 100);
    },
  });
}

async function renew(href) {
  const known = finished(panel.querySelector("section.run"));
  const page = await load(href);
  const fresh = page.getElementById("child");
  const old = panel.querySelector("#child");
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
  stream = null;
  panel.hidden = true;
  panel.replaceChildren();
  back?.focus();
}

panel.addEventListener("keydown", (event) => event.key === "Escape" && close());
