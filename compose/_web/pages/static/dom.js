// Replaces parts of pages by newer ones that the server has rendered.

/** The server's text of an element, before anything here changed it. */
const served = new WeakMap();

/** Return the document of a page of ours. Throws an Error with the server's text. */
export async function load(url) {
  const response = await fetch(url, { headers: { accept: "text/html" } }).catch((error) => {
    throw Object.assign(error, { status: 503 });
  });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!response.ok) {
    const error = new Error(page.querySelector("main p")?.textContent || `status ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return page;
}

/** Record the server's text of the elements below, and make times readable. */
export function adopt(root) {
  for (const one of root.querySelectorAll(".cards > *, #queue > *")) served.set(one, one.outerHTML);
  showTimes(root);
}

/** Make the children of `old` those of `fresh`. An equal one stays unchanged, with the reader's input. */
export function patchChildren(old, fresh) {
  adopt(fresh);
  let place = old.firstElementChild;
  for (const one of [...fresh.children]) {
    const known = one.id && [...old.children].find((other) => other.id === one.id);
    if (known && served.get(known) === served.get(one)) {
      if (known === place) place = place.nextElementSibling;
      else old.insertBefore(known, place);
      continue;
    }
    if (known) {
      if (known.tagName === "DETAILS" && known.open) one.open = true;
      if (known === place) place = place.nextElementSibling;
      known.replaceWith(one);
    }
    old.insertBefore(one, place);
  }
  while (place) {
    const rest = place.nextElementSibling;
    place.remove();
    place = rest;
  }
}

const AGAIN_MS = 2000;

/** Return a function that does some work, and repeats it once if it is called meanwhile. */
export function oneByOne(work) {
  let state = "";
  return async function again() {
    if (state) {
      state = "again";
      return;
    }
    do {
      state = "busy";
      try {
        await work();
      } catch (error) {
        if (error.status < 500) tell(error.message);
        else setTimeout(again, AGAIN_MS); // the server is unreachable for a moment
      }
    } while (state === "again");
    state = "";
  };
}

const SPANS = [["day", 86400], ["hour", 3600], ["minute", 60]];
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
let zone = localStorage.getItem("zone") || "local";

/** Show instants as spans, and exactly on hover, in UTC or local time. */
export function showTimes(root) {
  for (const one of root.querySelectorAll("time")) {
    const at = new Date(one.dateTime);
    const seconds = (at - Date.now()) / 1000;
    const span = SPANS.find(([, size]) => -seconds >= size);
    one.textContent = span ? words.format(Math.round(seconds / span[1]), span[0]) : "just now";
    one.title = zone === "utc" ? at.toISOString().replace("T", " ").replace("Z", " UTC") : at.toString();
  }
}

/** Change between UTC and local time; return the current one. */
export function switchZone(next) {
  zone = next;
  localStorage.setItem("zone", next);
  showTimes(document);
}

export const currentZone = () => zone;

/** Show an error to the reader, or remove it. */
export function tell(text) {
  const told = document.getElementById("told");
  told.textContent = text;
  told.hidden = !text;
}
