// The page of an app's sessions: create one.
import "./page.js";
import { attempt, begin } from "./api.js";

const main = document.getElementById("main");
const button = main.querySelector("[data-do=new]");
button.addEventListener("click", () => attempt(button, () => begin(main.dataset.app)));
