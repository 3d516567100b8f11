// The one event stream of the page. It is opened again when it breaks, after a pause
// that grows, and says at any time what has become of it.
//
// A browser opens six connections to a server that speaks HTTP/1.1, for all its windows
// together, and a stream takes one for as long as it lasts. So only some windows have a
// stream. The others look: they open one, read its beginning, which has all of the last
// minute, and close it, again and again.

const events = ["hello", "history", "frame", "step", "detail", "change", "report", "sources", "bye"];
const firstPause = 1000;
const longestPause = 15000;
const silence = 6000; // ms without a frame, of ten a second, after which the stream is taken for dead
const patience = 15000; // ms for the first event
const mostStreams = 4; // of all windows of the browser
const betweenLooks = 1000; // ms

/**
 * Returns a function that gives a place among the streams back, or null if all are taken.
 * Browsers know locks only on pages that came over TLS or from this machine. Elsewhere no
 * window can know of the others, so all of them look.
 */
async function takePlace() {
  for (let i = 0; navigator.locks && i < mostStreams; i++) {
    const leave = await new Promise((resolve) => {
      const hold = (lock) => (lock ? new Promise((end) => resolve(end)) : resolve(null));
      navigator.locks.request(`leaky bucket stream ${i}`, { ifAvailable: true }, hold).catch(() => resolve(null));
    });
    if (leave) return leave;
  }
  return null;
}

export class Stream {
  /**
   * handle(event, data) is called for each event, and state(name, retryAt, message) when the state
   * changes. "refused" without retryAt means that asking again would give the same. since() is the
   * instant of the latest point that is known, so that only later ones are told.
   */
  constructor(handle, state, since) {
    Object.assign(this, { handle, state, since });
    this.pause = firstPause;
    this.leavePlace = null; // gives back the place among the streams; null if there is none
    this.attempt = null; // the latest call of connect, until its stream is closed
  }

  /** Opens the stream of a bucket, of a whole source (id null) or of what the server selects (source null). */
  open(source, id) {
    this.disconnect();
    this.refused = false; // for good
    this.live = false;
    const query = [];
    if (source != null) query.push(`source=${encodeURIComponent(source)}`);
    if (source != null && id != null) query.push(`key=${id}`);
    this.address = `api/v1/events${query.length ? "?" : ""}${query.join("&")}`;
    this.connect();
  }

  async connect() {
    clearTimeout(this.timer);
    if (!this.live) this.state("connecting"); // between two looks it is live
    const attempt = {};
    this.attempt = attempt;
    const leave = this.leavePlace ?? await takePlace();
    if (this.attempt !== attempt) { // It was closed meanwhile, or opened anew.
      if (leave !== this.leavePlace) leave?.();
      return;
    }
    this.leavePlace = leave;
    const since = this.since();
    const stream = new EventSource(since == null ? this.address : `${this.address}${this.address.includes("?") ? "&" : "?"}since=${since}`);
    this.stream = stream;
    this.watch(patience);
    let last = "detail"; // of the beginning
    for (const name of events) {
      stream.addEventListener(name, (event) => {
        if (this.stream !== stream) return; // one that was closed meanwhile
        this.pause = firstPause;
        if (name === "bye") return this.lost("bye");
        const data = JSON.parse(event.data);
        if (name === "hello") {
          this.live = true;
          this.state("live", null, leave ? "" : "once a second");
          if (!data.selected) last = "history"; // There is no source yet.
        }
        if (name === "frame") this.watch(silence);
        this.handle(name, data);
        if (name === last && !leave && this.stream === stream) this.lookAgain();
      });
    }
    stream.onerror = () => {
      if (this.stream === stream) this.lost("lost");
    };
  }

  /** Ends a look, and takes another one soon. */
  lookAgain() {
    this.disconnect();
    this.timer = setTimeout(() => this.connect(), betweenLooks);
  }

  /** Tries at once, if the stream is broken. */
  retry() {
    if (!this.stream && this.address) this.connect();
  }

  close() {
    this.disconnect();
    this.address = null;
    this.live = false;
    this.leavePlace?.();
    this.leavePlace = null;
  }

  disconnect() {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    this.stream?.close();
    this.stream = null;
    this.attempt = null;
  }

  lost(name) {
    this.disconnect();
    this.live = false;
    this.retryAt = Date.now() + this.pause;
    this.timer = setTimeout(() => this.connect(), this.pause);
    this.pause = Math.min(2 * this.pause, longestPause);
    this.state(name, this.retryAt);
    if (name === "lost") this.explain(this.address);
  }

  /** Asks for the reason if the server refused the stream: an EventSource does not tell. */
  async explain(address) {
    const abort = new AbortController();
    try {
      const response = await fetch(address, { signal: abort.signal });
      if (response.ok || this.address !== address || this.stream) return;
      const { error } = await response.json();
      if (this.address !== address || this.stream) return;
      const forGood = [400, 413, 414, 431].includes(response.status); // such as a key that is too long
      if (forGood) clearTimeout(this.timer);
      this.refused = forGood;
      this.state("refused", forGood ? null : this.retryAt, error?.message ?? `status ${response.status}`);
    } catch {
      // The connection is lost, or what answers is not the inspector: that it is lost has been said.
    } finally {
      abort.abort();
    }
  }

  watch(limit) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.lost("lost"), limit);
  }
}
