// Live text of answers: plain, until the server's page has the whole message.

/** Return the element of a live answer; create it if it is missing. */
function answerOf(section, position) {
  const live = section.querySelector(".live");
  let found = [...live.children].find((one) => one.dataset.position === position && !one.dataset.done);
  if (!found) {
    found = document.createElement("article");
    found.className = "card message assistant now";
    found.dataset.position = position;
    found.innerHTML =
      '<header><strong>Assistant</strong></header><details class="reasoning" open hidden><summary>Reasoning</summary><div class="plain"></div></details><div class="said plain"></div>';
    live.append(found);
  }
  return found;
}

/** Show a piece of an answer, or all of it so far. */
export function say(section, type, { text, attempt, position }) {
  const answer = answerOf(section, position);
  const [said, reasoning] = [answer.querySelector(".said"), answer.querySelector(".reasoning")];
  if (answer.dataset.attempt && answer.dataset.attempt < attempt) {
    said.textContent = reasoning.lastElementChild.textContent = ""; // the model is called again
  }
  answer.dataset.attempt = attempt;
  if (type === "text_snapshot") said.textContent = text;
  else if (type === "text_delta") said.append(text);
  else {
    reasoning.hidden = false;
    reasoning.lastElementChild.append(text);
  }
}

/** Restart the stream, and its live answers. */
export function startOver(root) {
  for (const one of root.querySelectorAll(".live > :not([data-done])")) one.remove();
}

/** Mark live answers as complete: they are removed when the server's page has come. */
export function finish(section) {
  for (const one of section.querySelectorAll(".live > *")) one.dataset.done = "1";
}

/** Remove the complete answers; `all`: the run has ended. */
export function clear(section, known, all) {
  for (const one of section.querySelectorAll(".live > *")) if (all || known.has(one)) one.remove();
}

/** Return the complete answers. */
export const finished = (section) => new Set(section?.querySelectorAll(".live > [data-done]"));
