// What to know about postgres, shown; titles as in docs/languages.md.

import postgres from 'postgres';

const sql = postgres({ max: 2 });

function trap(title, holds, detail) {
  console.log(holds ? `ok - ${title}` : `not ok - ${title}: ${JSON.stringify(detail)}`);
}

const errorOf = (promise) => promise.then(() => null, (error) => error.code ?? error.message);

let [got] = await sql`SELECT jsonb_typeof(${'{"a": 1}'}::jsonb) AS kind`;
trap('A string for jsonb becomes a JSON string', got.kind === 'string', got);

got = await errorOf(sql.begin(async (tx) => {
  await tx`SELECT idem_once('trap', 'swallowed')`;
  await errorOf(tx`SELECT 1 / 0`.execute());
}));
trap('begin fails for an error that was swallowed within', got === '22012', got);

got = await sql.begin(async (tx) => {
  await tx`SELECT outcome FROM idem_claim('trap', 'inner')`;
  await errorOf(tx.savepoint((inner) => inner`SELECT 1 / 0`));
  await tx`SELECT idem_finish('trap', 'inner', state => 'failed')`;
  return 'committed';
});
trap('... unless it was within savepoint', got === 'committed', got);

[got] = await sql`SELECT deleted FROM idem_sweep()`;
trap('bigint arrives as a string', typeof got.deleted === 'string', got);

[got] = await sql`SELECT ${sql.json({ id: 1 })}::jsonb || '{"id": 9007199254740993}' AS h`;
trap('JSON.parse rounds numbers beyond 2^53', got.h.id === 9007199254740992, got);

[got] = await sql`SELECT TIMESTAMPTZ '2026-01-01 00:00:00.123456Z' AS t`;
trap('A Date keeps milliseconds', got.t.toISOString() === '2026-01-01T00:00:00.123Z', got);

got = await errorOf((async () => sql`SELECT * FROM idem_claim('trap', 'u', ${undefined})`)());
trap('undefined is refused', got === 'UNDEFINED_VALUE', got);

const camel = postgres({ max: 1, transform: postgres.camel });
[got] = await camel`SELECT response_code FROM idem_lookup('trap', 'none')`;
trap('postgres.camel renames the columns', 'responseCode' in got, got);

const count = postgres({ max: 1 });
await count`SELECT outcome FROM idem_lookup('trap', ${'prepared'})`;
[got] = await count`SELECT count(*)::int AS n FROM pg_prepared_statements WHERE statement LIKE '%idem_lookup%'`;
trap('Every statement becomes a prepared one', got.n >= 1, got);
await Promise.all([sql.end(), camel.end(), count.end()]);
