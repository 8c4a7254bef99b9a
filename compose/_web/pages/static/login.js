// The login page.
import "./page.js";
import { ask, attempt, base } from "./api.js";

const form = document.getElementById("login");
const token = document.getElementById("token");

/** Return the page that the reader requested, unless it is on another site. */
function target() {
  const wanted = new URL(form.dataset.next, location.origin);
  return wanted.origin === location.origin ? wanted.pathname : `${base}/`;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const isIn = await attempt(form, () => ask("POST", "/login", { token: token.value.trim() }));
  token.value = "";
  if (isIn) location.replace(target());
});
token.focus();
