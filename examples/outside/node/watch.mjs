// Watch a run until it ends: node watch.mjs ME RUN [tenant]
// `tenant`: a run that somebody else started, for which ME needs the grant `--sees`.
// Entries of its log come once each and in order, and between them the pieces of a model's answer while it is made.

import { createInbox } from "@nats-io/transport-node";
import { connected, given, tenant, token } from "./nats.mjs";

const SILENCE_MS = 12_000; // a host beats every five seconds
const [me, run, sees] = given("ME", "RUN", "[tenant]");
const nc = await connected(me);
const subject = `api.v1.${tenant}.${token(me)}.events${sees ? ".tenant" : ""}`;
let from = 0; // the log entry to go on with
let watched, silence;
let line = ""; // ends a line of pieces before the next entry

watch();
(async () => {
  for await (const { type } of nc.status()) if (type === "reconnect") watch();
})();
await nc.closed();

/** Ask for what comes from here on; whichever host answers goes on where another one stopped. */
function watch() {
  watched?.unsubscribe();
  const reply = createInbox(`_INBOX_${token(me)}`);
  watched = nc.subscribe(reply, { callback: (_, message) => heard(message) });
  nc.publish(subject, JSON.stringify({ run, from_seq: from }), { reply });
  again(SILENCE_MS);
}

function again(ms) {
  clearTimeout(silence);
  silence = setTimeout(watch, ms);
}

function heard(message) {
  again(SILENCE_MS);
  const failed = Number(message.headers?.get("Nats-Service-Error-Code") || message.headers?.code || 0);
  if (failed === 503 || failed === 429) return again(1000); // no host just now, or it is stopping, or busy
  if (failed) return end(`watch: ${message.headers.get("Nats-Service-Error")}`, 1);
  switch (message.headers?.get("Actor-Event")) {
    case "beat": // says that somebody still listens
      return message.respond();
    case "delta":
      line = "\n";
      return process.stdout.write(message.json().data.text);
    case "entry": {
      const event = message.json();
      from = event.seq + 1;
      console.log(`${line}${event.seq} ${event.name} (attempt ${event.attempt})`);
      return (line = "");
    }
    case "end": {
      const event = message.json();
      console.log(`${event.name} ${JSON.stringify(event.data.result ?? event.data.error)}`);
      return end("", event.name === "COMPLETED" ? 0 : 1);
    }
  }
}

function end(complaint, code) {
  if (complaint) console.error(complaint);
  clearTimeout(silence);
  process.exitCode = code;
  nc.close();
}
