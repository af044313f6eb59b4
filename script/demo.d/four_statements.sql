-- Claim the key, do the work, store the answer: one transaction.
BEGIN;
SELECT outcome, attempt, expires_at > now() + '23 h' AS kept_a_day
  FROM idem_claim('create_order', 'k-1001', '42',
                  request => '{"item": "tea", "qty": 2}');
INSERT INTO orders (customer, idem_key, cart)
  VALUES ('42', 'k-1001', '{"item": "tea", "qty": 2}');
SELECT idem_finish('create_order', 'k-1001', '42',
                   response_code => 201, response_body => '{"order": 1}');
COMMIT;

-- No answer came, so the client sends it again; the JSON may look different.
SELECT outcome, response_code, response_body
  FROM idem_claim('create_order', 'k-1001', '42',
                  request => '{"qty":2.0, "item":"tea"}');

-- The same key for something else is a client's bug, and is told so.
SELECT outcome, state, response_body
  FROM idem_claim('create_order', 'k-1001', '42',
                  request => '{"item": "tea", "qty": 200}');
