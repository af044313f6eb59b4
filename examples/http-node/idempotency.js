/*
 * Idempotency-Key for Express, on the PostgreSQL extension idempotency.
 *
 * Implements draft-ietf-httpapi-idempotency-key-header.  A handler is wrapped
 * in one of two ways, and returns its answer, { status, headers, body }:
 *
 *     idempotent(async (req, db) => ..., { databaseOnly: true })
 *         All it does is in this database: claim, rows and answer are one
 *         transaction.
 *
 *     idempotent(async (req, claim) => {
 *       const charge = await provider.charge(claim.reference); // no transaction open
 *       return claim.settle(async (db) => ...);                // rows and answer, one transaction
 *     })
 *         It does something outside, or you cannot tell: the claim is leased
 *         and committed.
 *
 * What is stored, by the status of the answer:
 *
 *     2xx, 3xx   the answer, with the handler's rows
 *     4xx        the answer alone: a refusal is replayed too, and leaves no rows.  An
 *                error of http-errors (expose, status 4xx) is an answer of that status
 *     408, 425,  nothing: they ask for another try.  All rolls back, or the claim is
 *     429        released, and the same key runs again
 *     5xx, or    nothing where databaseOnly: all of it rolls back, and the same key
 *     exception  runs again.  Else "unknown": the key waits for somebody to find out
 *
 * Throw NotDone where nothing was sent or done for certain: the same key runs
 * again, leased or not.  A stream cannot be stored: leave such a route unwrapped.
 */

import { createHash, randomUUID } from 'node:crypto';
import { promisify } from 'node:util';
import express from 'express';
import pg from 'pg';
import { NotDone, Refused, answerFor, answerThrown, keyOf, problem } from './answers.js';

// Never cookies or credentials.
const REPLAYED_HEADERS = ['content-type', 'location', 'etag', 'link'];

const CLAIM = `
  SELECT * FROM idem_claim($1, $2, $3, ttl => '24 h', lease => $4, claim_token => $5,
    request => jsonb_build_object('method', $6::text, 'target', $7::text,
                                  'json', $8::text::jsonb, 'sha256', $9::text))`;
const FINISH = `
  SELECT idem_finish($1, $2, $3, token => $4, state => $5, response_code => $6,
                     response_headers => $7, response_bytes => $8)`;
const LOOKUP = 'SELECT * FROM idem_lookup($1, $2, $3)';

// No JSON, or none that jsonb holds.
const NOT_JSONB = ['22P02', '22P05', '22003', '54000', '54001'];
const UNAVAILABLE = /^(08|40|53|57P|57014|25006)/;

const TRY_AGAIN = [408, 425, 429];

/**
 * pool: a pg.Pool; principal(req): the authenticated user; scope: what keys are
 * unique in, for each user; lease: longer than any handler runs.
 */
export function idempotency({ pool, principal, scope = 'http', lease = '60 s', maxBody = 131072 }) {
  const readBody = promisify(express.raw({ type: () => true, limit: maxBody, inflate: false }));

  return function idempotent(handler, { databaseOnly = false } = {}) {
    const run = databaseOnly ? transactional : leased;
    return async (req, res) => {
      const answer = await run(handler, req, res).catch(refusal);
      res.status(answer.status);
      for (const [name, value] of Object.entries(answer.headers ?? {})) {
        res.setHeader(name, value); // as it is: res.set() would add a charset
      }
      res.end(answer.body ?? undefined);
    };
  };

  /** Whatever is thrown rolls back everything, the claim included. */
  async function transactional(handler, req, res) {
    const request = await identify(req, res);
    return inTransaction(pool, async (db) => {
      const record = await claim(db, request, null, null);
      if (record.outcome !== 'claimed') {
        return answerFor(record);
      }
      const answer = await work(db, () => handler(req, db));
      if (answer.status >= 500) {
        throw new NotDone(answer);
      }
      await finish(db, request.identity, record.token, answer);
      return answer;
    });
  }

  async function leased(handler, req, res) {
    const request = await identify(req, res);
    // A token for this attempt alone, made outside the retry: should the answer to
    // the claim get lost, the same claim again is the same claim.
    const token = randomUUID();
    const attempt = () => claim(pool, request, lease, token);
    const record = await attempt().catch((error) => {
      if (isAway(error)) {
        return attempt();
      }
      throw error;
    });
    if (record.outcome !== 'claimed') {
      return answerFor(record);
    }
    const owned = new Claim(pool, request.identity, record);
    try {
      const answer = await respond(() => handler(req, owned));
      return owned.settled ? answer : await owned.settle(() => answer);
    } catch (error) {
      if (error instanceof NotDone) {
        return owned.giveUp('released', error.answer);
      }
      console.error('outcome unknown:', error);
      return owned.giveUp('unknown', problem('outcome-unknown', { status: 500 }));
    }
  }

  /** Who asks for what, under which key. */
  async function identify(req, res) {
    await readBody(req, res); // to a Buffer in req.body, unless it has been read already
    const body = rawBody(req);
    if (body.length > maxBody) {
      throw new Refused(problem('request-too-large'));
    }
    const user = principal(req);
    if (!user) { // or all who are not logged in would share their keys
      throw new Refused(problem('not-authenticated'));
    }
    // JSON goes to the database as it came, where its values are compared: to parse
    // it here would round its numbers.  Anything else is compared by its bytes.
    const json = req.is(['json', '+json']) ? textOf(body) : null;
    const sha256 = json === null ? createHash('sha256').update(body).digest('hex') : null;
    return {
      identity: [scope, keyOf(req.get('Idempotency-Key')), String(user)],
      content: [req.method, req.originalUrl, json, sha256],
    };
  }
}

/** What the handler of a leased claim gets. */
class Claim {
  constructor(pool, identity, record) {
    Object.assign(this, { pool, identity, token: record.token, settled: false });
    this.attempt = record.attempt;
    this.recovered = record.recovered;
    // What a provider should know this by: the same on every attempt.
    const hash = createHash('sha256');
    for (const part of identity) {
      hash.update(Buffer.from([Buffer.byteLength(part)])).update(part);
    }
    this.reference = hash.digest('hex').slice(0, 32);
  }

  /**
   * Run rowsAndAnswer(db) and store its answer, in one transaction.  If another
   * has replaced us (ID001), the rows roll back.
   */
  async settle(rowsAndAnswer) {
    const answer = await inTransaction(this.pool, async (db) => {
      const result = await work(db, () => rowsAndAnswer(db));
      await finish(db, this.identity, this.token, result);
      return result;
    });
    this.settled = true;
    return answer;
  }

  /**
   * After an exception.  The handler's rows have rolled back, unless it was
   * COMMIT's answer that got lost; then, or if replaced, the record tells.
   */
  async giveUp(state, answer) {
    try {
      await this.pool.query(FINISH, [...this.identity, this.token, state, null, null, null]);
    } catch (error) {
      if (error.code === 'ID001') {
        return answerFor((await this.pool.query(LOOKUP, this.identity)).rows[0]);
      }
      console.error('not recorded; it will read as unknown:', error);
    }
    return answer;
  }
}

/** The handler's answer; of a refusal its rows are rolled back. */
async function work(db, handler) {
  await db.query('SAVEPOINT work');
  const answer = await respond(handler);
  if (TRY_AGAIN.includes(answer.status)) {
    throw new NotDone(answer);
  }
  await db.query(answer.status >= 400 ? 'ROLLBACK TO work' : 'RELEASE work');
  return answer;
}

/** The handler's answer, be it returned or thrown. */
async function respond(handler) {
  let answer;
  try {
    answer = await handler();
  } catch (error) {
    answer = answerThrown(error);
    if (!answer) {
      throw error;
    }
  }
  if (!(answer.body == null || typeof answer.body === 'string' || Buffer.isBuffer(answer.body))) {
    throw new TypeError('a stream cannot be stored: do not wrap this route');
  }
  return answer;
}

async function finish(db, identity, token, { status, headers = {}, body }) {
  const state = status < 400 ? 'succeeded' : status < 500 ? 'failed' : 'unknown';
  const replayed = Object.entries(headers).filter(
    ([name]) => REPLAYED_HEADERS.includes(name.toLowerCase()));
  const stored = [status, JSON.stringify(Object.fromEntries(replayed)), Buffer.from(body ?? '')];
  await db.query(FINISH, [...identity, token, state,
    ...(state === 'unknown' ? [null, null, null] : stored)]);
}

async function claim(db, { identity, content }, lease, token) {
  try {
    return (await db.query(CLAIM, [...identity, lease, token, ...content])).rows[0];
  } catch (error) {
    if (error.code === '22023' && error.column === 'key') {
      throw new Refused(problem('idempotency-key-invalid'));
    }
    if (content[2] !== null && NOT_JSONB.includes(error.code)) {
      throw new Refused(problem('not-json'));
    }
    throw error;
  }
}

async function inTransaction(pool, body) {
  const db = await pool.connect();
  let broken;
  try {
    await db.query('BEGIN');
    const result = await body(db);
    await db.query('COMMIT');
    return result; // only now: COMMIT has succeeded
  } catch (error) {
    await db.query('ROLLBACK').catch((lost) => { broken = lost; });
    throw error;
  } finally {
    db.release(broken); // a connection in doubt is closed, which rolls back, too
  }
}

/** The answer to an exception; what was begun has rolled back. */
function refusal(error) {
  if (error instanceof Refused) {
    return error.answer;
  }
  if (error.type === 'entity.too.large') {
    return problem('request-too-large');
  }
  if (isAway(error)) {
    console.error('database unavailable:', error.message);
    return problem('unavailable');
  }
  throw error; // to the application's error handler
}

/** Is the database away or busy, so that the same key is all a client needs? */
function isAway(error) {
  return error instanceof pg.DatabaseError ? UNAVAILABLE.test(error.code)
    : /ECONN|EPIPE|ENOENT|terminated|timeout/.test(`${error.code} ${error.message}`);
}

/** The bytes that were sent.  Two requests whose bytes are gone would look the same. */
function rawBody(req) {
  const body = req.rawBody ?? req.body;
  const announced = req.get('Transfer-Encoding') || Number(req.get('Content-Length')) > 0;
  if (body === undefined && !announced) {
    return Buffer.alloc(0);
  }
  if (!Buffer.isBuffer(body)) {
    throw new Error('idempotency: something else has read the body. Mount idempotent routes before'
      + ' body parsers, or keep the bytes in req.rawBody by their option verify');
  }
  return body;
}

function textOf(body) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body);
    return text === '' || text.includes('\0') ? null : text;
  } catch {
    return null;
  }
}
