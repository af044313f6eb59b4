import postgres from 'postgres';

const sql = postgres();

async function createOrder(key, user, order) {
  const claim = await sql.begin(async (tx) => {
    const [row] = await tx`
      SELECT outcome, response_code AS code, response_body AS body
      FROM idem_claim('create_order', ${key}, ${user}, request => ${tx.json(order)}, wait => '1 s')`;
    if (row.outcome === 'claimed') {
      const [{ id }] = await tx`
        INSERT INTO orders (customer, item) VALUES (${user}, ${order.item}) RETURNING id`;
      Object.assign(row, { code: 201, body: `{"order": ${id}}` });
      await tx`
        SELECT idem_finish('create_order', ${key}, ${user}, response_code => ${row.code},
                           response_body => ${row.body})`;
    }
    return row;
  });
  return answer(claim);
}

async function charge(key, user, amount) {
  const [claim] = await sql`
    SELECT outcome, token, response_code AS code, response_body AS body
    FROM idem_claim('charge', ${key}, ${user}, request => ${sql.json({ amount })}, lease => '60 s')`;
  if (claim.outcome === 'claimed') {
    const reference = await askProvider(amount); // outside of any transaction
    Object.assign(claim, { code: 201, body: JSON.stringify({ charge: reference }) });
    await sql.begin(async (tx) => {
      await tx`INSERT INTO payments VALUES (${key}, ${reference}, ${amount})`;
      await tx`
        SELECT idem_finish('charge', ${key}, ${user}, token => ${claim.token},
                           response_code => ${claim.code}, response_body => ${claim.body})`;
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
await sql.end();
