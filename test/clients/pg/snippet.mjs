import pg from 'pg';

const pool = new pg.Pool();
pool.on('error', console.error); // an idle connection that breaks must not end the process

// A transaction is one client's from BEGIN to COMMIT, never the pool's.
async function transaction(work) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const result = await work(client);
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {}); // the first error is the one to tell
    throw error;
  } finally {
    client.release();
  }
}

async function createOrder(key, user, order) {
  const claim = await transaction(async (client) => {
    const { rows: [row] } = await client.query(
      `SELECT outcome, response_code AS code, response_body AS body
       FROM idem_claim('create_order', $1, $2, request => $3, wait => '1 s')`,
      [key, user, JSON.stringify(order)]);
    if (row.outcome === 'claimed') {
      const { rows: [{ id }] } = await client.query(
        'INSERT INTO orders (customer, item) VALUES ($1, $2) RETURNING id', [user, order.item]);
      Object.assign(row, { code: 201, body: `{"order": ${id}}` });
      await client.query(
        `SELECT idem_finish('create_order', $1, $2, response_code => $3, response_body => $4)`,
        [key, user, row.code, row.body]);
    }
    return row;
  });
  return answer(claim);
}

async function charge(key, user, amount) {
  const { rows: [claim] } = await pool.query(
    `SELECT outcome, token, response_code AS code, response_body AS body
     FROM idem_claim('charge', $1, $2, request => $3, lease => '60 s')`,
    [key, user, JSON.stringify({ amount })]);
  if (claim.outcome === 'claimed') {
    const reference = await askProvider(amount); // outside of any transaction
    Object.assign(claim, { code: 201, body: JSON.stringify({ charge: reference }) });
    await transaction(async (client) => {
      await client.query('INSERT INTO payments VALUES ($1, $2, $3)', [key, reference, amount]);
      await client.query(
        `SELECT idem_finish('charge', $1, $2, token => $3, response_code => $4, response_body => $5)`,
        [key, user, claim.token, claim.code, claim.body]);
    });
  }
  return answer(claim);
}

function answer({ outcome, code, body }) {
  if (outcome === 'claimed' || outcome === 'replayed') {
    return [code, body];
  }
  return [outcome === 'mismatch' ? 422 : 409, outcome];
}

const askProvider = async (amount) => `ch_${amount}`;

for (let i = 0; i < 2; i++) {
  console.log(...await createOrder('k-1', '42', { item: 'tea' }));
  console.log(...await charge('k-2', '42', 500));
}
await pool.end();
