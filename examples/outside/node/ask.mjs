// Ask an agent and print its answer: node ask.mjs TYPE KEY ME ID JSON
// The question is a CloudEvent, and so is the answer. With the same id it is the same run and the same answer, so it
// is safe to ask again: a host that ends while it holds the question does not answer, or answers with 503.

import { setTimeout } from "node:timers/promises";
import { headers } from "@nats-io/transport-node";
import { connected, given, tenant, token } from "./nats.mjs";

const TRIES = 10;
const [type, key, me, id, json] = given("TYPE", "KEY", "ME", "ID", "JSON");
const nc = await connected(me);
const subject = `ask.v1.${tenant}.${token(type)}.${token(key)}.${token(me)}`;
const question = headers();
for (const [name, value] of Object.entries({ specversion: "1.0", id, source: `/${me}`, type: "question" })) {
  question.set(`ce-${name}`, value);
}
question.set("Actor-Timeout", "10");

const answer = await asked(TRIES);
const failed = answer.headers.has("Nats-Service-Error-Code") && answer.json().error;
if (failed) {
  console.error(`${failed.code} ${failed.type}: ${failed.message}; ${failed.remedy}`);
} else {
  console.error(`run ${answer.headers.get("Actor-Run")}, ce-type ${answer.headers.get("ce-type")}`);
  console.log(JSON.stringify(answer.json()));
}
await nc.close();
process.exitCode = failed ? 1 : 0;

/** What a host says; asked again after a second while none is there or it is just stopping. */
async function asked(tries) {
  for (;;) {
    const said = await nc.request(subject, json, { headers: question, timeout: 15_000 }).catch((error) => error);
    const answered = !(said instanceof Error) && said.headers.get("Nats-Service-Error-Code") !== "503";
    if (answered) return said;
    if (!--tries) break;
    await setTimeout(1000);
  }
  console.error("no host answers; ask again with the same id");
  process.exit(1);
}
