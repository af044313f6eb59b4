/*
 * A shop's HTTP server in Express: what a handler looks like behind the
 * middleware.
 *
 * Read order and pay; the rest is there to show the edges.  The database is
 * that of libpq's environment; ../http/schema.sql lays it out.
 */

import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import express from 'express';
import pg from 'pg';
import { NotDone } from './answers.js';
import { idempotency } from './idempotency.js';

const USERS = { 'Bearer token-of-alice': 'alice', 'Bearer token-of-bob': 'bob' };
const { PORT, PROVIDER_PORT = 8081 } = process.env;
const LEASE = process.env.LEASE ?? '60 s'; // longer than what follows, together
const PROVIDER_TIMEOUT = 1000 * (process.env.PROVIDER_TIMEOUT ?? 30);
const POOL_TIMEOUT = 1000 * (process.env.POOL_TIMEOUT ?? 3);

const pool = new pg.Pool({ max: 10, connectionTimeoutMillis: POOL_TIMEOUT });
// An idle connection that breaks is no reason for the whole server to end.
pool.on('error', (error) => console.error('idle connection:', error.message));

const userOf = (req) => USERS[req.get('Authorization')];
const idempotent = idempotency({ pool, principal: userOf, lease: LEASE });
const app = express();

/** All effects are rows: if anything goes wrong, there is none of them. */
app.post('/orders', idempotent(async (req, db) => {
  const { item, qty } = jsonOf(req);
  if (typeof item !== 'string' || !whole(qty, 1000)) {
    refuse(422, 'item: a string, qty: from 1 to 1000');
  }
  const [{ id }] = (await db.query(
    'INSERT INTO orders (customer, item, qty) VALUES ($1, $2, $3) RETURNING id',
    [userOf(req), item, qty])).rows;
  const [stock] = (await db.query(
    'SELECT left_over, rushed FROM stock WHERE item = $1 FOR UPDATE', [item])).rows;
  if (stock?.rushed) { // stored by no flow: to come again is what it asks for
    return answer(429, { error: 'too many buyers' }, { 'Retry-After': '5' });
  }
  if (stock?.left_over === null) {
    return answer(503, { error: 'being counted' });
  }
  if (!stock || stock.left_over < qty) {
    return answer(409, { error: 'out of stock' });
  }
  await db.query('UPDATE stock SET left_over = left_over - $1 WHERE item = $2', [qty, item]);
  return answer(201, { order: Number(id), receipt: randomBytes(16).toString('hex') },
    { Location: `/orders/${id}`, 'Set-Cookie': `last=${id}` });
}, { databaseOnly: true }));

/**
 * The provider is called outside of any transaction, under a reference that is
 * the same on every attempt.  Where it gives no verdict, nor do we.
 */
app.post('/payments', idempotent(async (req, claim) => {
  const { amount } = jsonOf(req);
  if (!whole(amount, 999999)) { // before anything is sent
    refuse(422, 'amount: from 1 to 999999');
  }
  const verdict = await callProvider(claim.reference, amount);
  if (verdict.status === 402) {
    return answer(402, { error: 'card declined' });
  }
  if (verdict.status === 429) { // it has charged nothing: the claim is released
    return answer(429, { error: 'too many payments' }, { 'Retry-After': '5' });
  }
  if (verdict.status !== 201) {
    return answer(502, { error: 'no verdict' });
  }
  return claim.settle(async (db) => {
    await db.query('INSERT INTO payments VALUES ($1, $2, $3, $4)',
      [claim.reference, userOf(req), amount, verdict.charge]);
    return answer(201, { charge: verdict.charge, receipt: randomBytes(16).toString('hex') },
      { Location: `/payments/${claim.reference}` });
  });
}));

/** Any type of body, and the same bytes back. */
app.route('/notes').post(note()).put(note());

function note() {
  return idempotent(async (req, db) => {
    const content = req.body ?? Buffer.alloc(0);
    await db.query('INSERT INTO notes VALUES ($1, $2)', [userOf(req), content]);
    return { status: 201, headers: { 'Content-Type': 'application/octet-stream' }, body: content };
  }, { databaseOnly: true });
}

/** A body that a parser has read is known by the bytes that this keeps. */
const keepBytes = (req, res, bytes) => { req.rawBody = bytes; };
app.post('/parsed', express.json({ verify: keepBytes }), parsed());

/** What the one above must not be: the middleware refuses. */
app.post('/mistake/parsed', express.json(), parsed());

function parsed() {
  return idempotent(async (req) => answer(200, { got: req.body }), { databaseOnly: true });
}

/** A stream has no place in a record, so this route is left alone. */
app.post('/export', (req, res) => {
  lines().pipe(res.type('text/plain'));
});

/** What the one above must not be: the middleware refuses, and the note is undone. */
app.post('/mistake', idempotent(async (req, db) => {
  await db.query("INSERT INTO notes VALUES ('nobody', '')");
  return { status: 200, headers: { 'Content-Type': 'text/plain' }, body: lines() };
}, { databaseOnly: true }));

function lines() {
  return Readable.from([0, 1, 2].map((n) => `line ${n}\n`));
}

/** The document that was sent. */
function jsonOf(req) {
  if (!req.is(['json', '+json'])) {
    refuse(415, 'this takes JSON');
  }
  try {
    return Object(JSON.parse(req.body));
  } catch {
    return refuse(400, 'this is no JSON');
  }
}

function whole(number, most) {
  return Number.isInteger(number) && number >= 1 && number <= most;
}

/** An error as http-errors makes it: the refusal is stored, and replayed. */
function refuse(status, message) {
  throw Object.assign(new Error(message), { status, expose: true });
}

function answer(status, document, headers) {
  return {
    status,
    headers: { 'Content-Type': 'application/json', ...headers },
    body: JSON.stringify(document),
  };
}

/** Its status and document.  No connection at all: for certain nothing was sent. */
async function callProvider(reference, amount) {
  try {
    const response = await fetch(`http://127.0.0.1:${PROVIDER_PORT}/charges`, {
      method: 'POST',
      body: JSON.stringify({ reference, amount }),
      signal: AbortSignal.timeout(PROVIDER_TIMEOUT),
    });
    return { ...await response.json(), status: response.status };
  } catch (error) {
    if (error.cause?.code === 'ECONNREFUSED') {
      throw new NotDone();
    }
    return { status: 504 };
  }
}

app.listen(Number(PORT), '127.0.0.1');
