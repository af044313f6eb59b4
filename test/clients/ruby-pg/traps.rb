# What to know about pg, shown; titles as in docs/languages.md.

require 'pg'

DB = PG.connect

def trap_shown(title, holds, detail = nil)
  puts(holds ? "ok - #{title}" : "not ok - #{title}: #{detail.inspect}")
end

def error_of
  yield
  nil
rescue PG::Error => e
  e.result&.error_field(PG::PG_DIAG_SQLSTATE) || e.class.name
rescue StandardError => e
  e.class.name
end

got = DB.exec("SELECT idem_once('trap', 'k'), idem_once('trap', 'k') AS again").first
trap_shown("Without a type map 'f' is a string, and true", got['again'] == 'f' && got['again'], got)

got = DB.exec_params("SELECT $1::jsonb AS request", [{ 'item' => 'tea' }]).first
trap_shown('A Hash for jsonb becomes NULL', got['request'].nil?, got)

got = error_of { DB.exec_params("SELECT * FROM idem_once_batch('trap', $1)", [%w[a b]]) }
trap_shown('An Array is not a text[]', got == '22P02', got)

got = error_of { DB.exec_params("SELECT octet_length($1::bytea)", ["a\0b"]) }
trap_shown('A string with a zero byte wants format: 1', got == 'ArgumentError', got)
got = DB.exec_params("SELECT octet_length($1::bytea)", [{ value: "a\0b", format: 1 }]).getvalue(0, 0)
trap_shown('... and goes in whole with it', got == '3', got)

got = DB.exec("SELECT '\\x6100'::bytea").getvalue(0, 0)
trap_shown('Without a type map bytea arrives in hexadecimal', got == '\x6100', got)

moment = Time.at(1_700_000_000, 123_456)
got = DB.exec_params('SELECT $1::timestamptz = to_timestamp(1700000000.123456)', [moment]).getvalue(0, 0)
trap_shown('A Time goes out without its fraction', got == 'f', got)

DB.transaction do
  DB.exec("SELECT idem_once('trap', 'swallowed')")
  error_of { DB.exec('SELECT 1 / 0') }
end
got = DB.exec("SELECT outcome FROM idem_lookup('trap', 'swallowed')").getvalue(0, 0)
trap_shown('COMMIT says nothing after a swallowed error', got == 'absent', got)

map = PG::BasicTypeMapForResults.new(DB)
DB.type_map_for_results = map
warned = $stderr.dup
read, write = IO.pipe
$stderr.reopen(write)
DB.exec("SELECT gen_random_uuid()").getvalue(0, 0)
$stderr.reopen(warned)
write.close
got = read.read
trap_shown('BasicTypeMapForResults warns of each uuid', got.include?('no type cast defined'), got)
