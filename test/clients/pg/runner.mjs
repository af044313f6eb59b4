// The scenario and the race by pg (../lib/scenario.py, ../lib/race.py).

import { createHash } from 'node:crypto';
import { createInterface } from 'node:readline';
import pg from 'pg';

const [, , way, me] = process.argv;

// An interval arrives as an object with years to milliseconds, a jsonb value as
// what JSON.parse makes of it: which is a pity where a number has more than 53
// bits, so here the document is left as text.
pg.types.setTypeParser(pg.types.builtins.JSONB, (text) => text);

const native = {
  text: (text) => text,
  untyped: (text) => text,
  integer: Number,
  boolean: (text) => text === 't',
  bytea: (text) => Buffer.from(text, 'hex'),
  uuid: (text) => text,
  jsonb: (text) => text,
  interval: (text) => `${text} microseconds`,
  'text[]': (text) => text.split('|').filter(Boolean).map(decodeURIComponent),
};

function microseconds(interval) {
  const { hours = 0, minutes = 0, seconds = 0, milliseconds = 0 } = interval;
  return Math.round((hours * 3600 + minutes * 60 + seconds) * 1e6 + milliseconds * 1e3);
}

const shown = {
  boolean: (value) => (value ? 't' : 'f'),
  bytea: (value) => value.toString('hex'),
  interval: microseconds,
  timestamptz: (value) => value.getTime() * 1000,
};

const client = new pg.Client();
await client.connect();

async function query(text, values = []) {
  const name = way === 'named' ? createHash('md5').update(text).digest('hex') : undefined;
  const { rows } = await client.query({ name, text, values, rowMode: 'array' });
  return rows;
}

function show(value, kind) {
  if (value === null) {
    return 'null';
  }
  const text = kind === 'text[]' ? value.map(encodeURIComponent).join('|')
    : encodeURIComponent((shown[kind] ?? String)(value));
  return `${value.constructor.name}=${text}`;
}

async function step(kept, what, sql, parameters, columns) {
  if (what !== 'query') {
    await client.query(what.endsWith('savepoint') ? `${what} s` : what);
    return [];
  }
  const values = parameters.split(' ').filter(Boolean).map((parameter) => {
    const [kind, text] = parameter.split('=');
    if (kind === 'null') return null;
    if (text[0] === '@') return kept[text.slice(1)];
    return native[kind](kind === 'text[]' ? text : decodeURIComponent(text));
  });
  const kinds = columns.split(' ').map((column) => column.split('>'));
  const rows = await query(decodeURIComponent(sql), values);
  for (const row of rows) {
    kinds.forEach(([, name], i) => { if (name) kept[name] = row[i]; });
  }
  return rows.map((row) => row.map((value, i) => show(value, kinds[i][0])).join(' '));
}

async function conformance(lines) {
  const kept = {};
  for await (const line of lines) {
    const [number, ...fields] = line.split('\t');
    try {
      console.log([number, 'ok', ...await step(kept, ...fields)].join('\t'));
    } catch (error) {
      const state = error.code ?? encodeURIComponent(error.stack);
      console.log([number, 'error', state, error.column ?? ''].join('\t'));
    }
  }
}

async function transaction(work) {
  await client.query('BEGIN');
  try {
    const result = await work();
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  }
}

const bodyFor = (key) => `${key} by ${me}, ${process.pid} \u{1FAD6}`;
const effect = (flow, key) =>
  query('INSERT INTO effect VALUES ($1, $2, $3, $4) RETURNING 1', [flow, key, me, process.pid]);

const flows = {
  transactional: (key) => transaction(async () => {
    let [[outcome, body]] = await query(
      `SELECT outcome, response_body FROM idem_claim('race', $1, request => $2, wait => '20 ms')`,
      [key, JSON.stringify({ key })]);
    if (outcome === 'claimed') {
      body = bodyFor(key);
      await effect('transactional', key);
      await query(`SELECT idem_finish('race', $1, response_body => $2)`, [key, body]);
    }
    return [outcome, body];
  }),
  leased: async (key) => {
    let [[outcome, token, body]] = await query(
      `SELECT outcome, token, response_body FROM idem_claim('leased race', $1, request => $2,
         lease => '10 min')`, [key, JSON.stringify({ key })]);
    if (outcome === 'claimed') {
      await effect('outside', key);
      body = bodyFor(key);
      await transaction(async () => {
        await effect('leased', key);
        await query(`SELECT idem_finish('leased race', $1, token => $2, response_body => $3)`,
          [key, token, body]);
      });
    }
    return [outcome, body];
  },
};

async function race(lines) {
  const turns = [];
  for await (const line of lines) {
    turns.push(line.split('\t'));
  }
  for (const [flow, key] of turns) {
    const [outcome, body] = await flows[flow](key);
    console.log([flow, key, outcome, encodeURIComponent(body ?? '')].join('\t'));
    if (outcome === 'in_progress') {
      turns.push([flow, key]);
    }
  }
}

await (me ? race : conformance)(createInterface({ input: process.stdin }));
await client.end();
