// The scenario and the race by postgres (../lib/scenario.py, ../lib/race.py).

import { createInterface } from 'node:readline';
import postgres from 'postgres';

const [, , way, me] = process.argv;

// A jsonb value arrives as what JSON.parse makes of it, and an object leaves by
// JSON.stringify: which is a pity where a number has more than 53 bits, so here
// the document is text on both ways.
const sql = postgres({
  max: 1,
  prepare: way === 'prepared',
  types: { jsonb: { to: 3802, from: [3802], serialize: (text) => text, parse: (text) => text } },
});

const native = {
  text: (text) => text,
  untyped: (text) => text,
  integer: Number,
  boolean: (text) => text === 't',
  bytea: (text) => Buffer.from(text, 'hex'),
  uuid: (text) => text,
  jsonb: (text) => text,
  interval: (text) => `${text} microseconds`,
  'text[]': (text) => sql.array(text.split('|').filter(Boolean).map(decodeURIComponent), 25),
};

// An interval arrives as PostgreSQL writes it.
function microseconds(interval) {
  const [hours, minutes, seconds] = interval.split(':').map(Number);
  return Math.round((hours * 3600 + minutes * 60 + seconds) * 1e6);
}

const shown = {
  boolean: (value) => (value ? 't' : 'f'),
  bytea: (value) => value.toString('hex'),
  interval: microseconds,
  timestamptz: (value) => value.getTime() * 1000,
};

class Rollback extends Error {}

const query = (db, text, values = []) => db.unsafe(text, values, { prepare: way === 'prepared' }).values();

function show(value, kind) {
  if (value === null) {
    return 'null';
  }
  const text = kind === 'text[]' ? value.map(encodeURIComponent).join('|')
    : encodeURIComponent((shown[kind] ?? String)(value));
  return `${value.constructor.name}=${text}`;
}

async function step(db, kept, text, parameters, columns) {
  const values = parameters.split(' ').filter(Boolean).map((parameter) => {
    const [kind, value] = parameter.split('=');
    if (kind === 'null') return null;
    if (value[0] === '@') return kept[value.slice(1)];
    return native[kind](kind === 'text[]' ? value : decodeURIComponent(value));
  });
  const kinds = columns.split(' ').map((column) => column.split('>'));
  const rows = await query(db, decodeURIComponent(text), values);
  for (const row of rows) {
    kinds.forEach(([, name], i) => { if (name) kept[name] = row[i]; });
  }
  return rows.map((row) => row.map((value, i) => show(value, kinds[i][0])).join(' '));
}

async function report(number, work) {
  try {
    console.log([number, 'ok', ...await work].join('\t'));
  } catch (error) {
    const state = error.code ?? encodeURIComponent(error.stack);
    console.log([number, 'error', state, error.column_name ?? ''].join('\t'));
  }
}

// Transactions and savepoints are functions that end well or throw: so the steps
// within one are run by a function too, which returns the step that ends it.
async function steps(db, lines, kept) {
  for (let line = lines.shift(); line !== undefined; line = lines.shift()) {
    const [number, what, ...fields] = line.split('\t');
    if (what === 'query') {
      await report(number, step(db, kept, ...fields));
    } else if (what === 'begin' || what === 'savepoint') {
      await block(number, db[what].bind(db), lines, kept);
    } else {
      return [number, what];
    }
  }
  return [];
}

async function block(number, call, lines, kept) {
  let last;
  console.log(`${number}\tok`);
  const done = call(async (inner) => {
    let what;
    [last, what] = await steps(inner, lines, kept);
    if (what !== 'commit') {
      throw new Rollback();
    }
    return [];
  }).catch((error) => {
    if (!(error instanceof Rollback)) {
      throw error;
    }
    return [];
  });
  await done.catch(() => {});
  await report(last, done);
}

const bodyFor = (key) => `${key} by ${me}, ${process.pid} \u{1FAD6}`;
const effect = (db, flow, key) =>
  query(db, 'INSERT INTO effect VALUES ($1, $2, $3, $4) RETURNING 1', [flow, key, me, process.pid]);

const flows = {
  transactional: (key) => sql.begin(async (tx) => {
    let [[outcome, body]] = await query(tx,
      `SELECT outcome, response_body FROM idem_claim('race', $1, request => $2, wait => '20 ms')`,
      [key, JSON.stringify({ key })]);
    if (outcome === 'claimed') {
      body = bodyFor(key);
      await effect(tx, 'transactional', key);
      await query(tx, `SELECT idem_finish('race', $1, response_body => $2)`, [key, body]);
    }
    return [outcome, body];
  }),
  leased: async (key) => {
    let [[outcome, token, body]] = await query(sql,
      `SELECT outcome, token, response_body FROM idem_claim('leased race', $1, request => $2,
         lease => '10 min')`, [key, JSON.stringify({ key })]);
    if (outcome === 'claimed') {
      await effect(sql, 'outside', key);
      body = bodyFor(key);
      await sql.begin(async (tx) => {
        await effect(tx, 'leased', key);
        await query(tx, `SELECT idem_finish('leased race', $1, token => $2, response_body => $3)`,
          [key, token, body]);
      });
    }
    return [outcome, body];
  },
};

async function race(turns) {
  for (const [flow, key] of turns) {
    const [outcome, body] = await flows[flow](key);
    console.log([flow, key, outcome, encodeURIComponent(body ?? '')].join('\t'));
    if (outcome === 'in_progress') {
      turns.push([flow, key]);
    }
  }
}

await query(sql, 'SELECT 1');
const lines = [];
for await (const line of createInterface({ input: process.stdin })) {
  lines.push(line);
}
await (me ? race(lines.map((line) => line.split('\t'))) : steps(sql, lines, {}));
await sql.end();
