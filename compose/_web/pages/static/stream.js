// A stream that delivers each event once, over lost connections and other servers.

export const TYPES = [
  "run_queued", "loop_started", "message", "text_delta", "reasoning_delta", "text_snapshot", "tool_started",
  "tool_finished", "approval_requested", "approval_decided", "child_started", "child_finished", "run_waiting",
  "run_resumed", "attempt_failed", "cancel_requested", "run_completed", "run_failed", "run_cancelled", "run_dequeued",
];
const FIRST_WAIT_MS = 1000;
const LAST_WAIT_MS = 15_000;
const NEVER = [400, 401, 404, 410]; // a retry does not help

/** A stream of events, which is closed while the page is hidden: a browser has six connections for a server. */
export class Stream {
  /**
   * @param url      Of the events.
   * @param after    Id of the event to go on behind; empty: none.
   * @param types    Of the events.
   * @param on       Called with each event: its type, its data.
   * @param onState  Called with true when events begin to come (pieces of an answer from its start), else with false.
   * @param onRefused Called if the place to go on from is not known any more.
   */
  constructor(url, after, { types = TYPES, on, onState = () => {}, onRefused = () => {} }) {
    this.url = url;
    this.after = after;
    this.types = types;
    this.on = on;
    this.onState = onState;
    this.onRefused = onRefused;
    this.wait = FIRST_WAIT_MS;
    this.isOver = false;
    this.look = () => (document.hidden ? this.shut() : this.open());
    document.addEventListener("visibilitychange", this.look);
    this.look();
  }

  open() {
    if (this.isOver || this.source) return;
    clearTimeout(this.timer);
    const source = new EventSource(this.address());
    this.source = source;
    source.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      this.onState(true);
    };
    source.onerror = () => this.failed(source);
    for (const type of this.types) source.addEventListener(type, (event) => this.took(type, event));
    source.addEventListener("problem", (event) => this.refused(JSON.parse(event.data).status));
  }

  address() {
    const address = new URL(this.url, location.href);
    if (this.after) address.searchParams.set("after", this.after);
    return address;
  }

  took(type, event) {
    if (event.lastEventId) this.after = event.lastEventId;
    this.on(type, JSON.parse(event.data));
  }

  /** The browser reconnects by itself unless the server refused; then we retry with growing pauses. */
  failed(source) {
    if (source !== this.source) return;
    this.onState(false);
    if (source.readyState !== EventSource.CLOSED) return;
    this.source = null;
    this.timer = setTimeout(() => this.retry(), this.wait);
    this.wait = Math.min(2 * this.wait, LAST_WAIT_MS);
  }

  /** Fetch the reason of the server's refusal, which a stream does not have, and retry. */
  async retry() {
    if (this.isOver || document.hidden) return;
    const address = this.address();
    address.searchParams.set("limit", "1");
    const answer = await fetch(address, { headers: { accept: "application/json" } }).catch(() => null);
    this.refused(answer?.status);
    this.open();
  }

  refused(status) {
    if (NEVER.includes(status)) this.onRefused();
  }

  shut() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  end() {
    this.isOver = true;
    document.removeEventListener("visibilitychange", this.look);
    this.shut();
  }
}
