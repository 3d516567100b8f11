// Load test of two shaperd that share a limit on Redis, for k6 v1. README.md beside this
// file says how to run it: a Go test starts all that is needed, and kills on demand.
//
// Each phase offers more than the limit, to both shaperd alternately. What has to leave
// is a matter of arithmetic in RATE R (per second), BURST B and DEPTH D (requests that may
// wait, in each shaperd), and the thresholds decide.
import http from 'k6/http';
import { check } from 'k6';
import exec from 'k6/execution';
import { Counter, Trend } from 'k6/metrics';

const FRONTS = need('FRONTS').split(',');
const CONTROL = need('CONTROL'); // kills and starts, and knows what the upstream has seen
const RATE = Number(need('RATE'));
const BURST = Number(need('BURST'));
const DEPTH = Number(need('DEPTH'));

// SLACK is by how much, in seconds, instants may differ from the arithmetic on a busy
// machine: an end of a phase at which requests are late by so much.
const SLACK = 0.5;

// OFFERED is more than two shaperd let pass that know nothing of each other, 2R. So each
// of the mistakes that there can be shows: a shaperd that is gone leaves R/2 if the other
// one does not take over its share.
const OFFERED = 2.4 * RATE;
const PHASE = 10; // seconds
const KILLED = 2; // seconds after a phase has begun, something is killed or started
const GAP = 1.5; // between phases, so that each begins with empty lines

// What leaves in a phase: the rate while it lasts, what fills the bucket, and what then
// still waits in both lines.
const LEAST = RATE * (PHASE - SLACK);
const MOST = RATE * (PHASE + SLACK) + BURST + 2 * DEPTH;

// LONGEST is how long, in seconds, the last of a full line waits: each shaperd has half of
// the rate. NOTICE is how long nobody leaves a shaperd until it believes that Redis has
// gone: it asks three times, each for 250 ms at most.
const LONGEST = DEPTH / (RATE / 2);
const NOTICE = 0.75;

const phases = ['shared', 'redis_dies', 'redis_is_back', 'one_dies'];
const orders = { redis_dies: 'redis/kill', redis_is_back: 'redis/start', one_dies: 'shaperd/kill' };
const beginsAt = (phase) => phases.indexOf(phase) * (PHASE + GAP);

export const options = { scenarios: {}, thresholds: {}, summaryTrendStats: ['min', 'med', 'p(95)', 'max'] };
for (const phase of phases) {
  options.scenarios[phase] = {
    executor: 'constant-arrival-rate', startTime: ms(beginsAt(phase)), duration: ms(PHASE),
    rate: Math.round(OFFERED * 60), timeUnit: '1m', preAllocatedVUs: Math.ceil(2 * (DEPTH + OFFERED * SLACK)), gracefulStop: '2s', exec: 'request',
  };
  if (orders[phase]) {
    options.scenarios[`${phase}_order`] = {
      executor: 'shared-iterations', vus: 1, iterations: 1, startTime: ms(beginsAt(phase) + KILLED), maxDuration: '15s', gracefulStop: '0s', exec: 'order', env: { ORDER: orders[phase] },
    };
  }
  // Nobody leaves while a shaperd waits for Redis. When Redis has gone, and when it is
  // back, a shaperd has used two buckets in one phase: its own and that of all.
  const notice = phase.startsWith('redis') ? NOTICE : 0;
  const buckets = phase.startsWith('redis') ? BURST + RATE * SLACK : 0;
  Object.assign(options.thresholds, {
    [`sent{scenario:${phase}}`]: [`count>=${Math.floor(OFFERED * PHASE - 4)}`],
    [`admitted{scenario:${phase}}`]: [`count>=${Math.floor(LEAST - RATE * notice)}`, `count<=${Math.ceil(MOST + buckets)}`],
    [`wait{scenario:${phase}}`]: [`max<=${Math.ceil(1000 * (LONGEST + notice + SLACK))}`],
    [`retried{scenario:${phase}}`]: phase === 'one_dies' ? ['count>0'] : ['count==0'],
  });
}
options.scenarios.verdict = {
  executor: 'shared-iterations', vus: 1, iterations: 1, startTime: ms(beginsAt('one_dies') + PHASE + GAP + 1), maxDuration: '5s', gracefulStop: '0s', exec: 'verdict',
};
Object.assign(options.thresholds, {
  dropped_iterations: ['count==0'],
  checks: ['rate==1'],
  failed: ['count==0'],
  // The most that the upstream got in any second, whoever sent it.
  any_second: [`max<=${Math.ceil(RATE * (1 + SLACK) + 2 * BURST)}`],
  orders: [`count==${Object.keys(orders).length}`],
});

// A 429 is an answer that a shaperd owes to those who don't fit, no failure.
http.setResponseCallback(http.expectedStatuses(200, 429));

const sent = new Counter('sent');
const admitted = new Counter('admitted');
const retried = new Counter('retried'); // at the other shaperd, because the first did not answer
const failed = new Counter('failed');
const carriedOut = new Counter('orders');
const wait = new Trend('wait', true); // in the line, in ms, as the server tells it
const anySecond = new Trend('any_second');

// request is what a load balancer does: it sends requests alternately, and those that one
// shaperd does not answer to the other.
export function request() {
  sent.add(1);
  const first = exec.scenario.iterationInTest % FRONTS.length;
  let res = get(FRONTS[first]);
  if (res.status === 0) {
    retried.add(1);
    res = get(FRONTS[1 - first]);
  }
  if (res.status === 200) {
    admitted.add(1);
    // The check is needed, as a threshold on a Trend without values passes.
    const told = /(?:^|,)\s*shaper;dur=([0-9.]+)/.exec(res.headers['Server-Timing'] || '');
    check(told, { 'Server-Timing tells the wait': (t) => t !== null });
    if (told) wait.add(Number(told[1]));
  } else if (res.status === 429) {
    check(res, { 'Retry-After is at least 1 s': (r) => Number(r.headers['Retry-After']) >= 1 });
  } else {
    failed.add(1);
    console.error(`${exec.scenario.name}: status ${res.status} ${res.error}`);
  }
}

function get(front) {
  return http.get(front, { timeout: ms(LONGEST + 5), tags: { name: 'GET /' } });
}

// order has the Go test kill or start something.
export function order() {
  const res = http.post(`${CONTROL}/${__ENV.ORDER}`, null, { timeout: '20s' });
  if (check(res, { 'the order was carried out': (r) => r.status === 200 })) carriedOut.add(1);
}

export function verdict() {
  const res = http.get(`${CONTROL}/upstream`);
  check(res, { 'the upstream tells what it has seen': (r) => r.status === 200 });
  anySecond.add(res.json('most_in_a_second'));
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
  const lines = ['', `rate ${RATE}/s, burst ${BURST}, depth ${DEPTH}; ${OFFERED}/s are offered for ${PHASE} s in each phase`, '',
    '                 sent  admitted  refused  retried  longest wait'];
  for (const phase of phases) {
    const count = (name) => pad(value(`${name}{scenario:${phase}}`, 'count'), 9);
    const sum = value(`sent{scenario:${phase}}`, 'count');
    const refusals = sum - value(`admitted{scenario:${phase}}`, 'count');
    lines.push(phase.padEnd(14) + pad(sum, 7) + pad(value(`admitted{scenario:${phase}}`, 'count'), 10) + pad(refusals, 9) +
      count('retried') + pad(`${value(`wait{scenario:${phase}}`, 'max').toFixed(0)} ms`, 14));
  }
  lines.push('', `the most in any second at the upstream: ${value('any_second', 'max')}`);
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

function ms(seconds) {
  return `${Math.round(1000 * seconds)}ms`;
}

function pad(value, width) {
  return String(value).padStart(width);
}

function need(name) {
  if (!__ENV[name]) throw new Error(`${name} is missing: run this by the Go test beside it`);
  return __ENV[name];
}
