// The page where people say who they are.
import "./page.js";
import { ask, attempt, base } from "./api.js";

const form = document.getElementById("login");
const token = document.getElementById("token");

/** Return where a reader wanted to go, unless it is elsewhere. */
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
