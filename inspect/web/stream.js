// The one event stream of the page. It is opened again when it breaks, after a pause
// that grows, and says at any time what has become of it.

const events = ["hello", "history", "frame", "detail", "change", "report", "sources", "bye"];
const firstPause = 1000;
const longestPause = 15000;
const silence = 6000; // ms without a frame, of four a second, after which the stream is taken for dead

export class Stream {
  /** handle(event, data) is called for each event, state(name, {retryAt, message}) when the state changes. */
  constructor(handle, state) {
    this.handle = handle;
    this.state = state;
    this.pause = firstPause;
  }

  /** Opens the stream of a bucket, of a whole source (id null) or of what the server selects (source null). */
  open(source, id) {
    this.close();
    const query = [];
    if (source != null) query.push(`source=${encodeURIComponent(source)}`);
    if (source != null && id != null) query.push(`key=${id}`);
    this.address = `api/events${query.length ? "?" : ""}${query.join("&")}`;
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.state("connecting");
    const stream = new EventSource(this.address);
    this.stream = stream;
    for (const name of events) {
      stream.addEventListener(name, (event) => {
        if (this.stream !== stream) return; // one that was closed meanwhile
        this.pause = firstPause;
        if (name === "hello") this.state("live");
        if (name === "frame") this.watch();
        if (name === "bye") this.lost("bye");
        else this.handle(name, JSON.parse(event.data));
      });
    }
    stream.onerror = () => {
      if (this.stream === stream) this.lost("lost");
    };
  }

  /** Tries at once, if the stream is broken. */
  retry() {
    if (!this.stream && this.address) this.connect();
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    this.stream?.close();
    this.stream = null;
    this.address = null;
  }

  lost(name) {
    clearTimeout(this.watchdog);
    this.stream.close();
    this.stream = null;
    const retryAt = Date.now() + this.pause;
    this.timer = setTimeout(() => this.connect(), this.pause);
    this.pause = Math.min(2 * this.pause, longestPause);
    this.state(name, retryAt);
    if (name === "lost") this.explain(this.address);
  }

  /** Asks for the reason if the server refused the stream: an EventSource does not tell. */
  async explain(address) {
    const abort = new AbortController();
    try {
      const response = await fetch(address, { signal: abort.signal });
      if (response.ok || this.address !== address || this.stream) return;
      const { error } = await response.json();
      this.state("refused", null, error?.message);
    } catch {
      // The connection is lost, which has been said.
    } finally {
      abort.abort();
    }
  }

  watch() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.lost("lost"), silence);
  }
}
