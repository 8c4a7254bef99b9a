// A thread of the real `@ag-ui/client`: reads a command a line, and answers each with a line of JSON.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [library, url, token] = process.argv.slice(2);
const { HttpAgent } = await import(pathToFileURL(library).href);
const headers = token ? { authorization: `Bearer ${token}` } : {};
let agent;
console.error = () => {}; // the client tells a failed run there, too

async function run(command) {
  const events = [];
  const given = { runId: command.runId, tools: command.tools ?? [] };
  if (command.resume) given.resume = command.resume;
  try {
    const { result } = await agent.runAgent(given, { onEvent: ({ event }) => void events.push(event) });
    return { result, events };
  } catch (error) {
    return { error: String(error), status: error.status, events };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.do === "open") agent = new HttpAgent({ url, headers, threadId: command.threadId });
  if (command.do === "say") agent.addMessage({ id: command.id, role: "user", content: command.text });
  if (command.do === "keep") agent.addMessage(command.message);
  if (command.do === "give") {
    const { id, toolCallId, content } = command;
    agent.addMessage({ id, role: "tool", toolCallId, content });
  }
  const told = command.do === "run" ? await run(command) : {};
  const shown = { messages: agent.messages, pending: agent.pendingInterrupts };
  process.stdout.write(`${JSON.stringify({ ...told, ...shown })}\n`);
}
