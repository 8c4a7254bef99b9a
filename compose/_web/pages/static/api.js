// Requests to the API, as the page's reader.
import { tell } from "./dom.js";

const CSRF = /(?:^|; )(?:__Host-)?callboard_csrf=([0-9a-f]+)/; // the only cookie of a login that scripts can read
export const base = document.body.dataset.base;
export const part = encodeURIComponent;

/** Return the CSRF header that a change needs with a login's cookie; null without a login. */
export const csrf = () => CSRF.exec(document.cookie)?.[1] ?? null;

/** Return the JSON of an answer. Throws an Error with the problem's text. */
export async function ask(method, path, body, more = {}) {
  const headers = { accept: "application/json", "content-type": "application/json", ...more };
  const proof = csrf();
  if (proof) headers["x-csrf-token"] = proof;
  let response;
  try {
    response = await fetch(`${base}/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
  } catch {
    throw new Error("The server cannot be reached. Try again.");
  }
  const text = await response.text();
  const data = text ? JSON.parse(text) : null;
  if (!response.ok) throw Object.assign(new Error(`${data.detail} (${data.remedy})`), { code: data.code, detail: data.detail });
  return data;
}

/** Run an action of an element, one at a time, and show an error to the reader. Returns whether it succeeded. */
export async function attempt(element, work, say = tell) {
  if (element.dataset.busy) return false;
  element.dataset.busy = "1";
  try {
    await work();
    say("");
    return true;
  } catch (error) {
    say(error.message);
    return false;
  } finally {
    delete element.dataset.busy;
  }
}

/** Create a session, and open its page. */
export async function begin(app) {
  const made = await ask("POST", "/sessions", { app });
  location.assign(`${base}/chat/${part(app)}/${part(made.session_id)}`);
}
