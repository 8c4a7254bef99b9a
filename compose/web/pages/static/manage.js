// What a reader does with a whole conversation: give it a name, delete it. Each is asked for in a dialog.
import { attempt } from "./api.js";

/** Ask in a dialog, and do it if the reader agrees. What goes wrong is told in the dialog, which stays then. */
export function inDialog(name, work, prepare = () => {}) {
  const dialog = document.getElementById(name);
  const [form, told] = [dialog.querySelector("form"), dialog.querySelector("[role=alert]")];
  const say = (text) => {
    told.textContent = text;
    told.hidden = !text;
  };
  say("");
  prepare(form);
  form.onsubmit = async (event) => {
    event.preventDefault();
    if (event.submitter?.value === "no" || (await attempt(form, () => work(form), say))) dialog.close();
  };
  document.querySelector(".menu").open = false;
  dialog.showModal();
}
