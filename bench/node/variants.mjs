// The ways to create an order once, each as good as its documentation says how.
//
// A variant is { name, prepare(pool, redis...), request(key, body) }.  request
// answers { how, order }: how is "executed" (this call created the order),
// "replayed" (an earlier call did) or "busy" (try again later).  The order's
// commit is durable in all of them, and all but Powertools compare the request
// with the one that the key was first used for.

import { createHash } from 'node:crypto';
import { createRequire } from 'node:module';
import { IdempotencyConfig, makeIdempotent } from '@aws-lambda-powertools/idempotency';
import { CachePersistenceLayer } from '@aws-lambda-powertools/idempotency/cache';
import { createClient } from '@redis/client';

const require = createRequire(import.meta.url);
const { Idempotency } = require('@node-idempotency/core');
const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis');

const SOCKET = process.env.REDIS_SOCKET;

// After so long a crashed attempt of the Redis stacks may be run again, where
// they can tell at all.
export const LOCK_MS = 1000;

export const SCHEMA = `
CREATE TABLE orders (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ref text NOT NULL, customer bigint NOT NULL, total numeric NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE hand_record (
  key text PRIMARY KEY, request_hash bytea NOT NULL, response text,
  created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE stack_record (
  key text PRIMARY KEY, request_hash bytea NOT NULL, state text NOT NULL, response text,
  locked_at timestamptz NOT NULL DEFAULT now());
`;

const INSERT_ORDER = {
  name: 'order',
  text: 'INSERT INTO orders (ref, customer, total) VALUES ($1, $2, $3) RETURNING id',
};

async function createOrder(db, body) {
  const { rows } = await db.query({ ...INSERT_ORDER, values: [body.ref, body.customer, body.total] });
  return { order: Number(rows[0].id), status: 'created' };
}

const hashOf = (body) => createHash('sha256').update(JSON.stringify(body)).digest();

async function inTransaction(pool, work) {
  const db = await pool.connect();
  try {
    await db.query('BEGIN');
    const answer = await work(db);
    await db.query('COMMIT');
    return answer;
  } catch (error) {
    await db.query('ROLLBACK').catch(() => {});
    throw error;
  } finally {
    db.release();
  }
}

async function redisClient() {
  return createClient({ socket: { path: SOCKET } }).connect();
}

const none = {
  name: 'none',
  title: 'no idempotency',
  async open(pool) {
    return async (key, body) => ({ how: 'executed', order: await createOrder(pool, body) });
  },
};

const powertools = {
  name: 'powertools',
  title: 'Powertools for AWS Lambda on Redis',
  async open(pool) {
    const client = await redisClient();
    const config = new IdempotencyConfig({ eventKeyJmesPath: 'key' });
    // its answer to a crashed attempt: run again when the invocation must be over
    config.registerLambdaContext({ getRemainingTimeInMillis: () => LOCK_MS });
    const handler = makeIdempotent(
      async (event) => {
        event.ran = true;
        return createOrder(pool, event.body);
      },
      { persistenceStore: new CachePersistenceLayer({ client }), config },
    );
    return async (key, body) => {
      const event = { key, body };
      try {
        const order = await handler(event);
        return { how: event.ran ? 'executed' : 'replayed', order };
      } catch (error) {
        if (busyError(error)) return { how: 'busy' };
        throw error;
      }
    };
  },
};

function busyError(error) {
  for (let e = error; e; e = e.cause) {
    if (/AlreadyInProgress|ItemAlreadyExists|ItemNotFound|InconsistentState/.test(e.name)) return true;
  }
  return false;
}

const nodeIdempotency = {
  name: 'node-idempotency',
  title: '@node-idempotency/core on Redis',
  async open(pool) {
    const storage = new RedisStorageAdapter({ socket: { path: SOCKET } });
    await storage.connect();
    const idempotency = new Idempotency(storage, { enforceIdempotency: true });
    return async (key, body) => {
      const request = { headers: { 'idempotency-key': key }, path: '/orders', method: 'POST', body };
      try {
        const earlier = await idempotency.onRequest(request);
        if (earlier) return { how: 'replayed', order: earlier.body };
      } catch (error) {
        if (error.code === 'REQUEST_IN_PROGRESS') return { how: 'busy' };
        throw error;
      }
      const order = await createOrder(pool, body);
      await idempotency.onResponse(request, { statusCode: 201, body: order });
      return { how: 'executed', order };
    };
  },
};

// A lock in Redis, a record in the database, each step committed on its own,
// and the answer cached in Redis.
const stack = {
  name: 'stack',
  title: 'Redis SETNX + record table + update + Redis SET',
  async open(pool) {
    const redis = await redisClient();
    const run = async (key, body) => {
      const hash = hashOf(body);
      const { rowCount } = await pool.query({
        name: 'stack-claim',
        text: `INSERT INTO stack_record AS r (key, request_hash, state) VALUES ($1, $2, 'processing')
          ON CONFLICT (key) DO UPDATE SET locked_at = now()
          WHERE r.state = 'processing' AND r.locked_at < now() - interval '${LOCK_MS} ms'`,
        values: [key, hash],
      });
      if (rowCount === 0) return storedAnswer(key, hash);
      const order = await createOrder(pool, body);
      await pool.query({
        name: 'stack-finish',
        text: "UPDATE stack_record SET state = 'done', response = $2 WHERE key = $1",
        values: [key, JSON.stringify(order)],
      });
      await redis.set(`done:${key}`, JSON.stringify({ hash: hash.toString('hex'), order }), { EX: 86400 });
      return { how: 'executed', order };
    };
    const storedAnswer = async (key, hash) => {
      const { rows } = await pool.query({
        name: 'stack-read',
        text: 'SELECT request_hash, response FROM stack_record WHERE key = $1',
        values: [key],
      });
      if (rows.length === 0 || rows[0].response === null) return { how: 'busy' };
      if (!rows[0].request_hash.equals(hash)) throw new Error('key reused');
      return { how: 'replayed', order: JSON.parse(rows[0].response) };
    };
    return async (key, body) => {
      if (!(await redis.set(`lock:${key}`, '1', { NX: true, PX: LOCK_MS }))) {
        const cached = await redis.get(`done:${key}`);
        if (cached === null) return { how: 'busy' };
        const { hash, order } = JSON.parse(cached);
        if (hash !== hashOf(body).toString('hex')) throw new Error('key reused');
        return { how: 'replayed', order };
      }
      return run(key, body);
    };
  },
};

const hand = {
  name: 'hand',
  title: 'hand-written transaction of five statements',
  async open(pool) {
    return (key, body) => inTransaction(pool, async (db) => {
      const hash = hashOf(body);
      const { rowCount } = await db.query({
        name: 'hand-claim',
        text: 'INSERT INTO hand_record (key, request_hash) VALUES ($1, $2) ON CONFLICT DO NOTHING',
        values: [key, hash],
      });
      if (rowCount === 0) {
        const { rows } = await db.query({
          name: 'hand-read',
          text: 'SELECT request_hash, response FROM hand_record WHERE key = $1',
          values: [key],
        });
        if (!rows[0].request_hash.equals(hash)) throw new Error('key reused');
        return { how: 'replayed', order: JSON.parse(rows[0].response) };
      }
      const order = await createOrder(db, body);
      await db.query({
        name: 'hand-finish',
        text: 'UPDATE hand_record SET response = $2 WHERE key = $1',
        values: [key, JSON.stringify(order)],
      });
      return { how: 'executed', order };
    });
  },
};

const HOW = { replayed: 'replayed', executed: 'executed', in_progress: 'busy' };

const calls = {
  name: 'calls',
  title: 'idem_claim and idem_finish in one transaction',
  async open(pool) {
    return (key, body) => inTransaction(pool, async (db) => {
      const { rows: [claim] } = await db.query({
        name: 'idem-claim',
        text: "SELECT outcome, response_body FROM idem_claim('order', $1, $2, request => $3)",
        values: [key, String(body.customer), JSON.stringify(body)],
      });
      if (claim.outcome !== 'claimed') {
        if (!HOW[claim.outcome]) throw new Error(claim.outcome);
        return { how: HOW[claim.outcome], order: JSON.parse(claim.response_body) };
      }
      const order = await createOrder(db, body);
      await db.query({
        name: 'idem-finish',
        text: "SELECT idem_finish('order', $1, $2, response_code => 201, response_body => $3)",
        values: [key, String(body.customer), JSON.stringify(order)],
      });
      return { how: 'executed', order };
    });
  },
};

const COMMAND = `
INSERT INTO orders (ref, customer, total)
VALUES ($1->>'ref', ($1->>'customer')::bigint, ($1->>'total')::numeric)
RETURNING json_build_object('order', id, 'status', 'created'), 201`;

const execute = {
  name: 'execute',
  title: 'idem_execute',
  async open(pool) {
    return async (key, body) => {
      const { rows: [answer] } = await pool.query({
        name: 'idem-execute',
        text: `SELECT outcome, response_body
          FROM idem_execute('order', $1, $2, request => $3, command => $4)`,
        values: [key, String(body.customer), JSON.stringify(body), COMMAND],
      });
      if (!HOW[answer.outcome]) throw new Error(answer.outcome);
      return { how: HOW[answer.outcome], order: JSON.parse(answer.response_body) };
    };
  },
};

export const VARIANTS = [none, powertools, nodeIdempotency, stack, hand, calls, execute];
export const variant = (name) => VARIANTS.find((v) => v.name === name);
