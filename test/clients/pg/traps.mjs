// What to know about pg, shown; titles as in docs/languages.md.

import pg from 'pg';

const client = new pg.Client();
await client.connect();

function trap(title, holds, detail) {
  console.log(holds ? `ok - ${title}` : `not ok - ${title}: ${JSON.stringify(detail)}`);
}

const row = async (sql, values, db = client) => (await db.query(sql, values)).rows[0];
const errorOf = (promise) => promise.then(() => null, (error) => error.code ?? error.message);

let got = await row('SELECT deleted FROM idem_sweep()');
trap('bigint arrives as a string', typeof got.deleted === 'string', got);

got = await errorOf(row(`SELECT * FROM idem_claim('trap', 'array', request => $1)`, [[1, 2]]));
trap('An array for jsonb leaves as an array of PostgreSQL', got === '22P02', got);

await client.query(`BEGIN; SELECT * FROM idem_claim('trap', 'numbers');
  SELECT idem_finish('trap', 'numbers', response_headers => '{"id": 9007199254740993}'); COMMIT`);
got = await row(`SELECT response_headers AS h FROM idem_lookup('trap', 'numbers')`);
trap('JSON.parse rounds numbers beyond 2^53', got.h.id === 9007199254740992, got);

got = await row(`SELECT TIMESTAMPTZ '2026-01-01 00:00:00.123456Z' AS t`);
trap('A Date keeps milliseconds', got.t.toISOString() === '2026-01-01T00:00:00.123Z', got);

const binary = new pg.Client({ binary: true });
await binary.connect();
got = await row('SELECT 201 AS code WHERE $1', [true], binary);
trap('With binary: true, 201 arrives as 239', got.code === 239, got);
await binary.end();

got = await row(`SELECT INTERVAL '60 s' AS i`);
trap('interval arrives as an object', got.i.minutes === 1, got);

const pool = new pg.Pool({ max: 2 });
const first = await pool.connect();
const { pid } = await row('SELECT pg_backend_pid() AS pid', [], first);
got = await row('SELECT pg_backend_pid() AS pid', [], pool);
trap('pool.query is not in your transaction', got.pid !== pid, got);
first.release();
await pool.end();

await client.query(`BEGIN; SELECT idem_once('trap', 'swallowed')`);
await errorOf(client.query('SELECT 1 / 0'));
got = await client.query('COMMIT');
trap('COMMIT says nothing after a swallowed error', got.command === 'ROLLBACK', got);

const hasty = new pg.Client({ query_timeout: 100, application_name: 'hasty' });
hasty.on('error', () => {}); // it will be terminated
await hasty.connect();
got = await errorOf(hasty.query('SELECT pg_sleep(60)'));
let rows = [];
while (rows.length === 0) { // until the statement has begun
  ({ rows } = await client.query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'hasty' AND state = 'active' AND query LIKE '%pg_sleep(60)'`));
}
trap('query_timeout gives up, and the statement goes on', got === 'Query read timeout', got);
await hasty.end().catch(() => {});
await client.end();
