// Everybody sends the same key at once.  The holder commits after a while; how
// soon does each of the others have the answer, and what did waiting cost?
//
// "wait" waits inside of idem_claim; "poll" asks again every 100 ms, as a client
// does that is told 409; "lock" is the insert of a hand-written claim, which
// blocks until the lock manager wakes it: what a wake-up by signal would give.

import { readFileSync } from 'node:fs';
import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { quantile } from './orders.mjs';

const POLL_MS = 100;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function connect() {
  const client = new pg.Client({ application_name: 'storm' });
  await client.connect();
  const { rows } = await client.query('SELECT pg_backend_pid() AS pid');
  return { client, pid: rows[0].pid };
}

// Nanoseconds that these processes have run for.
function runtime(sessions) {
  let sum = 0;
  for (const { pid } of sessions) sum += Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0]);
  return sum;
}

const claim = (wait) => ({
  name: `claim-${wait}`,
  text: `SELECT outcome FROM idem_claim('storm', $1, wait => interval '${wait}')`,
});

const WAYS = {
  wait: {
    hold: (client, key) => client.query("SELECT FROM idem_claim('storm', $1)", [key]),
    release: (client, key) => client.query("SELECT idem_finish('storm', $1)", [key]),
    answer: async (client, key) => (await client.query({ ...claim('10 s'), values: [key] })).rows[0].outcome,
  },
  poll: {
    async answer(client, key) {
      await sleep(Math.random() * POLL_MS);
      for (;;) {
        const { rows: [{ outcome }] } = await client.query({ ...claim('0'), values: [key] });
        if (outcome !== 'in_progress') return outcome;
        await sleep(POLL_MS);
      }
    },
  },
  lock: {
    hold: (client, key) => client.query("INSERT INTO hand_record (key, request_hash) VALUES ($1, '')", [key]),
    release: (client, key) => client.query("UPDATE hand_record SET response = '' WHERE key = $1", [key]),
    async answer(client, key) {
      const values = [key];
      await client.query({
        name: 'i', text: "INSERT INTO hand_record (key, request_hash) VALUES ($1, '') ON CONFLICT DO NOTHING", values,
      });
      const { rows } = await client.query({ name: 's', text: 'SELECT response FROM hand_record WHERE key = $1', values });
      return rows[0].response === '' ? 'replayed' : 'wrong';
    },
  },
};
WAYS.poll.hold = WAYS.wait.hold;
WAYS.poll.release = WAYS.wait.release;

async function once(way, holder, waiters, hold) {
  const key = randomUUID();
  await holder.client.query('BEGIN');
  await way.hold(holder.client, key);
  const answers = waiters.map(async ({ client }) => {
    const outcome = await way.answer(client, key);
    if (outcome !== 'replayed') throw new Error(outcome);
    return performance.now();
  });
  await sleep(50);
  const before = runtime(waiters);
  const began = performance.now();
  await sleep(hold);
  const cpu = (runtime(waiters) - before) / 1e6 / (performance.now() - began);
  await way.release(holder.client, key);
  const committed = performance.now();
  await holder.client.query('COMMIT');
  const delays = (await Promise.all(answers)).map((time) => time - committed);
  return { cpu, delays };
}

export async function storm({ how, waiters, hold, rounds }, print) {
  const sessions = await Promise.all(Array.from({ length: waiters }, connect));
  const holder = await connect();
  const way = WAYS[how];
  await once(way, holder, sessions, 1);
  for (let i = 0; i < rounds; i++) {
    const { cpu, delays } = await once(way, holder, sessions, hold);
    print({ how, cores: cpu, p50: quantile(delays, 0.5), p99: quantile(delays, 0.99), max: Math.max(...delays) });
  }
}
