// Publish one message to an agent: node publish.mjs TYPE KEY ME ID JSON
// Prints the acknowledgement: from then on the message is handled, whatever crashes. The same id is handled once.

import { jetstream } from "@nats-io/jetstream";
import { connected, given, tenant, token } from "./nats.mjs";

const [type, key, me, id, json] = given("TYPE", "KEY", "ME", "ID", "JSON");
const nc = await connected(me);
const subject = `agent.v1.${tenant}.${token(type)}.${token(key)}.ext.${token(me)}`;
const { stream, seq } = await jetstream(nc).publish(subject, json, { msgID: id });
console.log(JSON.stringify({ stream, seq }));
await nc.close();
