require 'json'
require 'pg'

DB = PG.connect
DB.type_map_for_results = PG::BasicTypeMapForResults.new(DB)    # else all are strings
DB.type_map_for_results.default_type_map = PG::TypeMapAllStrings.new

def create_order(key, user, order)
  claim = DB.transaction do
    row = DB.exec_params(<<~SQL, [key, user, JSON.generate(order)]).first
      SELECT outcome, response_code AS code, response_body AS body
      FROM idem_claim('create_order', $1, $2, request => $3, wait => '1 s')
    SQL
    if row['outcome'] == 'claimed'
      insert = 'INSERT INTO orders (customer, item) VALUES ($1, $2) RETURNING id'
      id = DB.exec_params(insert, [user, order[:item]]).getvalue(0, 0)
      row.update('code' => 201, 'body' => %({"order": #{id}}))
      DB.exec_params(<<~SQL, [key, user, row['code'], row['body']])
        SELECT idem_finish('create_order', $1, $2, response_code => $3, response_body => $4)
      SQL
    end
    row
  end
  answer(claim)
end

def charge(key, user, amount)
  claim = DB.exec_params(<<~SQL, [key, user, JSON.generate(amount: amount)]).first
    SELECT outcome, token, response_code AS code, response_body AS body
    FROM idem_claim('charge', $1, $2, request => $3, lease => '60 s')
  SQL
  if claim['outcome'] == 'claimed'
    reference = ask_provider(amount)    # outside of any transaction
    claim.update('code' => 201, 'body' => JSON.generate(charge: reference))
    DB.transaction do
      DB.exec_params('INSERT INTO payments VALUES ($1, $2, $3)', [key, reference, amount])
      DB.exec_params(<<~SQL, [key, user, *claim.values_at('token', 'code', 'body')])
        SELECT idem_finish('charge', $1, $2, token => $3, response_code => $4, response_body => $5)
      SQL
    end
  end
  answer(claim)
end

def answer(claim)
  case claim['outcome']
  when 'claimed', 'replayed' then claim.values_at('code', 'body')
  when 'mismatch' then [422, 'mismatch']
  else [409, claim['outcome']]
  end
end

def ask_provider(amount) = "ch_#{amount}"

2.times do
  puts create_order('k-1', '42', { item: 'tea' }).join(' ')
  puts charge('k-2', '42', 500).join(' ')
end
