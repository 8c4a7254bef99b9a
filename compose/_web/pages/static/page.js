// Code for every page: times, and controls that need a script.
import { ask, base, csrf } from "./api.js";
import { currentZone, showTimes, switchZone } from "./dom.js";

const NAMES = { utc: "UTC", local: "Local time" };
const button = document.getElementById("zone");

document.documentElement.classList.add("js");
button.textContent = NAMES[currentZone()];
button.addEventListener("click", () => {
  switchZone(currentZone() === "utc" ? "local" : "utc");
  button.textContent = NAMES[currentZone()];
});
const leave = document.getElementById("leave");
leave.hidden = csrf() === null;
leave.addEventListener("click", async () => {
  await ask("POST", "/logout").catch(() => {});
  location.assign(`${base}/login`);
});
showTimes(document);
setInterval(() => showTimes(document), 30_000);
