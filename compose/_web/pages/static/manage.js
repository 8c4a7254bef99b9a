// Actions on a whole conversation: rename, delete. Each has a dialog.
import { attempt } from "./api.js";

/** Ask in a dialog, and do it if the reader agrees. On an error the dialog stays open and shows it. */
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
  const menu = document.querySelector(".menu");
  if (menu) menu.open = false;
  dialog.showModal();
}
