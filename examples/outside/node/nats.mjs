// What the three programs share: the connection, and names as tokens of a subject.

import { connect } from "@nats-io/transport-node";

export const tenant = "default";

/** A connection to CALLBOARD_NATS_URL; `me` is the publisher's name, whose inbox prefix is its own. */
export async function connected(me) {
  const { hostname, port, username, password } = new URL(process.env.CALLBOARD_NATS_URL);
  const login = username ? { user: decodeURIComponent(username), pass: decodeURIComponent(password) } : {};
  return connect({ servers: `${hostname}:${port || 4222}`, inboxPrefix: `_INBOX_${token(me)}`, ...login });
}

/** A name as one token of a subject (up to 128 bytes). */
export function token(name) {
  const safe = /^[A-Za-z0-9_-]$/;
  return [...Buffer.from(name)]
    .map((byte) => [byte, String.fromCharCode(byte)])
    .map(([byte, char]) => (safe.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`))
    .join("");
}

/** The arguments of the program, or its usage. */
export function given(...names) {
  const values = process.argv.slice(2);
  const needed = names.filter((name) => !name.startsWith("["));
  if (values.length < needed.length || values.length > names.length || !process.env.CALLBOARD_NATS_URL) {
    const program = process.argv[1].split("/").pop();
    console.error(`CALLBOARD_NATS_URL=nats://host:4222 node ${program} ${names.join(" ")}`);
    process.exit(2);
  }
  return values;
}
