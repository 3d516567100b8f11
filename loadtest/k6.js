// Load test of a running shapedemo, for k6 v1 (and v0.52, which is why there is
// no `??`). README.md beside this file says how to run it.
//
// Each phase states by arithmetic what the shaper has to do, in RATE R (per
// second), BURST B (cost units that may leave at once) and DEPTH D (requests
// that may wait), and its thresholds decide; handleSummary only tells. Phases
// follow one another so that each meets an empty line. Arrivals never wait for
// answers, as callers who slow down with the server would hide the overload.
import http from 'k6/http';
import exec from 'k6/execution';
import { check } from 'k6';
import { Counter, Trend } from 'k6/metrics';

const BASE_URL = (__ENV.BASE_URL || 'http://127.0.0.1:8080').replace(/\/+$/, '');
const RATE = fromEnv('RATE', 50);
const DEPTH = fromEnv('DEPTH', 100);
const BURST = fromEnv('BURST', 1);

// SLACK is by how much, in seconds, instants may differ from the arithmetic:
// on a small machine that also runs the generator, VUs start late and answers
// are seen late. A mistake of the shaper is larger, as the next lines see to.
const SLACK = 0.5;

// LINE is how long, in seconds, the last of a full line waits. EARLY is the least
// that it may be: lateness that the shaper makes up (20 ms) and the fractions of
// an interval at both ends; noise makes waits longer, never shorter than this.
const LINE = DEPTH / RATE;
const EARLY = LINE - 2 / RATE - 0.05;
if (LINE < 2 * SLACK) {
  throw new Error(`a line of DEPTH/RATE = ${LINE} s is too short to tell a mistake from noise; take one of at least ${2 * SLACK} s`);
}

// below: 80 % of the rate, evenly. Nobody is refused, and nobody waits but for
// the unevenness of the generator.
const BELOW = 4;

// burst: a square wave of 4R. While it lasts R×T leave, and B+D more are taken
// in; what is left is refused: 4RT − RT − B − D. T is chosen so that these are
// 3R; the generator's and the clock's unevenness may shift that by R×SLACK.
const SQUARE = 1 + (BURST + DEPTH) / (3 * RATE);
const BURST_SENT = 4 * RATE * SQUARE;

// herd: everyone at the same moment, R more than fit. B+D are taken in for
// certain, so at most R are refused; each moment the herd takes to arrive lets
// one more leave and one more in.
const HERD = BURST + DEPTH + Math.ceil(RATE);

// impatient: as many as may wait, each of whom gives up after a quarter of the
// line's time. Nobody is refused; at most R×PATIENCE leave in time, the rest, and
// those whom the upstream then answers too late, give up.
const PATIENCE = LINE / 4;
const GAVE_UP = Math.max(1, DEPTH - BURST - RATE * (PATIENCE + SLACK));

// newcomers: as many again, as soon as those have given up. Had one of them kept
// his place, a newcomer would be refused; had they kept their slots, the first
// newcomer would wait for LINE − PATIENCE − NOTICED, not for one interval.
const NOTICED = 0.2;
const FIRST = 1 / RATE + (LINE - PATIENCE - NOTICED) / 2;

const BELOW_AT = 0;
const BURST_AT = BELOW_AT + BELOW + 1;
const HERD_AT = BURST_AT + SQUARE + LINE + 1;
const IMPATIENT_AT = HERD_AT + LINE + 1.5;
const NEWCOMERS_AT = IMPATIENT_AT + PATIENCE + NOTICED;

// Each request in the line holds a VU, and so does each refusal on its way.
const VUS = Math.ceil(BURST + DEPTH + 2 * RATE * SLACK);

export const options = {
  scenarios: {
    below: {
      executor: 'constant-arrival-rate', startTime: ms(BELOW_AT), duration: ms(BELOW),
      rate: Math.round(48 * RATE), timeUnit: '1m', preAllocatedVUs: VUS, gracefulStop: '1s', exec: 'patient',
    },
    burst: {
      executor: 'ramping-arrival-rate', startTime: ms(BURST_AT), startRate: 0, timeUnit: '1m',
      preAllocatedVUs: VUS, gracefulStop: ms(LINE + 1), exec: 'patient',
      stages: [
        { target: Math.round(240 * RATE), duration: '0s' }, // A stage of 0s is a jump.
        { target: Math.round(240 * RATE), duration: ms(SQUARE) },
      ],
    },
    herd: simultaneous(HERD, HERD_AT, 'patient'),
    impatient: simultaneous(DEPTH, IMPATIENT_AT, 'impatient'),
    newcomers: simultaneous(DEPTH, NEWCOMERS_AT, 'patient'),
  },
  thresholds: {
    dropped_iterations: ['count==0'],
    checks: ['rate==1'],
    server_errors: ['count==0'],

    'sent{scenario:below}': within(0.8 * RATE * BELOW, 2, 2),
    'refused{scenario:below}': ['count==0'],
    'http_req_failed{scenario:below}': ['rate==0'],
    'wait{scenario:below}': longest(0),

    'sent{scenario:burst}': within(BURST_SENT, 4, 4),
    'refused{scenario:burst}': within(3 * RATE, RATE * SLACK, RATE * SLACK),
    'http_req_failed{scenario:burst}': ['rate==0'],
    'wait{scenario:burst}': longest(LINE).concat([`max>=${Math.floor(1000 * EARLY)}`]),

    'sent{scenario:herd}': within(HERD, 0, 0),
    'refused{scenario:herd}': within(Math.ceil(RATE), RATE * SLACK, 0),
    'http_req_failed{scenario:herd}': ['rate==0'],
    'wait{scenario:herd}': longest(LINE).concat([`max>=${Math.floor(1000 * EARLY)}`]),

    'sent{scenario:impatient}': within(DEPTH, 0, 0),
    'refused{scenario:impatient}': ['count==0'],
    'gave_up{scenario:impatient}': [`count>=${Math.ceil(GAVE_UP)}`],

    'sent{scenario:newcomers}': within(DEPTH, 0, 0),
    'refused{scenario:newcomers}': ['count==0'],
    'http_req_failed{scenario:newcomers}': ['rate==0'],
    'wait{scenario:newcomers}': longest(LINE).concat([`min<=${Math.ceil(1000 * FIRST)}`]),
  },
  summaryTrendStats: ['min', 'med', 'p(95)', 'max'],
};

// A 429 is an answer that the shaper owes to those who don't fit, no failure.
http.setResponseCallback(http.expectedStatuses(200, 429));

const sent = new Counter('sent');
const refused = new Counter('refused');
const gaveUp = new Counter('gave_up');
const serverErrors = new Counter('server_errors');
const wait = new Trend('wait', true); // in the line, in ms, as the server tells it

export function setup() {
  const res = http.get(`${BASE_URL}/healthz`, { timeout: '5s' });
  if (res.status !== 200) {
    exec.test.abort(`${BASE_URL}/healthz answers ${res.status || res.error}: start it with \`go run ./cmd/shapedemo\`, or set BASE_URL`);
  }
}

export function patient() {
  const res = get(LINE + 2);
  check(res, { 'admitted or refused': (r) => r.status === 200 || r.status === 429 });
}

export function impatient() {
  const res = get(PATIENCE);
  const timedOut = res.error_code === 1050; // k6's code for a request timeout
  if (timedOut) gaveUp.add(1);
  check(res, { 'admitted, or gave up': (r) => r.status === 200 || timedOut });
}

function get(timeout) {
  sent.add(1);
  const res = http.get(`${BASE_URL}/`, { timeout: ms(timeout), tags: { name: 'GET /' } });
  if (res.status >= 500) serverErrors.add(1);
  if (res.status === 429) {
    refused.add(1);
    check(res, { 'Retry-After is at least 1 s': (r) => Number(r.headers['Retry-After']) >= 1 });
  }
  if (res.status === 200) {
    // The check is needed, as a threshold on a Trend without values passes.
    const told = /(?:^|,)\s*shaper;dur=([0-9.]+)/.exec(res.headers['Server-Timing'] || '');
    check(told, { 'Server-Timing tells the wait': (t) => t !== null });
    if (told) wait.add(Number(told[1]));
  }
  return res;
}

// handleSummary must not throw: k6 would still exit with 0.
export function handleSummary(data) {
  const out = {};
  try {
    out.stdout = text(data.metrics);
  } catch (e) {
    out.stdout = `The text of the summary failed (the thresholds have decided all the same): ${e}\n`;
  }
  if (__ENV.SUMMARY_DIR) {
    out[`${__ENV.SUMMARY_DIR}/summary.json`] = JSON.stringify(data, null, 2);
  }
  return out;
}

function text(metrics) {
  const value = (name, key) => (metrics[name] ? metrics[name].values[key] : 0) || 0;
  const lines = [
    '',
    `${BASE_URL}: rate ${RATE}/s, burst ${BURST}, depth ${DEPTH}: the last of a full line waits ${LINE} s`,
    '',
    '              sent  refused  gave up  longest wait',
  ];
  for (const phase of ['below', 'burst', 'herd', 'impatient', 'newcomers']) {
    const count = (name) => value(`${name}{scenario:${phase}}`, 'count');
    // Those who gave up weren't told how long they waited, so "impatient" has none.
    const max = metrics[`wait{scenario:${phase}}`] ? `${value(`wait{scenario:${phase}}`, 'max').toFixed(0)} ms` : '';
    lines.push(phase.padEnd(12) + pad(count('sent'), 6) + pad(count('refused'), 9) + pad(count('gave_up'), 9) + pad(max, 14));
  }
  const crossed = [];
  for (const name of Object.keys(metrics)) {
    const thresholds = metrics[name].thresholds || {};
    for (const t of Object.keys(thresholds)) {
      if (!thresholds[t].ok) crossed.push(`  ${name}: ${t}, but ${JSON.stringify(metrics[name].values)}`);
    }
  }
  lines.push('', crossed.length ? 'CROSSED thresholds:' : 'All thresholds hold.', ...crossed, '');
  return lines.join('\n');
}

// simultaneous has n VUs send one request each, at once: executors of arrival
// rates space their starts evenly, so only VUs make a herd.
function simultaneous(n, at, fn) {
  return { executor: 'per-vu-iterations', vus: n, iterations: 1, startTime: ms(at), maxDuration: ms(LINE + 2), gracefulStop: '0s', exec: fn };
}

function within(n, below, above) {
  return [`count>=${Math.max(0, Math.floor(n - below))}`, `count<=${Math.ceil(n + above)}`];
}

function longest(seconds) {
  return [`max<=${Math.ceil(1000 * (seconds + SLACK))}`];
}

function ms(seconds) {
  return `${Math.round(1000 * seconds)}ms`;
}

function pad(value, width) {
  return String(value).padStart(width);
}

// fromEnv reads a number. What is no number above 0 is a mistake, not a default.
function fromEnv(name, byDefault) {
  const n = __ENV[name] ? Number(__ENV[name]) : byDefault;
  if (!(n > 0 && n < Infinity)) throw new Error(`${name} is ${__ENV[name]}, must be a number above 0`);
  return n;
}
