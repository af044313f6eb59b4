# The scenario and the race by pg (../lib/scenario.py, ../lib/race.py).

require 'digest'
require 'erb'
require 'json'
require 'pg'
require 'time'

WAY, ME = ARGV

def encode(text) = ERB::Util.url_encode(text)
def decode(text) = text.gsub(/%(\h\h)/) { $1.hex.chr }.force_encoding('UTF-8')

# What a parameter of each type is for exec_params: a string, or a hash that
# says of a string that it is binary.
NATIVE = {
  'integer' => ->(text) { Integer(text) },
  'boolean' => ->(text) { text == 't' },
  'bytea' => ->(text) { { value: [text].pack('H*'), format: 1 } },
  'jsonb' => ->(text) { JSON.generate(JSON.parse(text)) },
  'interval' => ->(text) { "#{text} microseconds" },
  'text[]' => lambda { |text|
    PG::TextEncoder::Array.new.encode(text.split('|').reject(&:empty?).map { |item| decode(item) })
  }
}.freeze

SHOWN = {
  'boolean' => ->(value) { value ? 't' : 'f' },
  'bytea' => ->(value) { value.unpack1('H*') },
  'jsonb' => ->(value) { JSON.generate(value) },
  'interval' => lambda { |value|
    hours, minutes, seconds = value.split(':')
    ((hours.to_i * 60 + minutes.to_i) * 60 * 1_000_000 + seconds.to_r * 1_000_000).to_i
  },
  'timestamptz' => ->(value) { value.to_i * 1_000_000 + value.usec }
}.freeze

# Without a map for its results every value arrives as a string, bytea in hex.
def type_map_for(db)
  map = PG::BasicTypeMapForResults.new(db)
  map.default_type_map = PG::TypeMapAllStrings.new
  map
end

DB = PG.connect
DB.type_map_for_results = type_map_for(DB)

# The results' format is the last argument.  These have no decoder for the binary
# one, and are asked for as text.
TEXT_ONLY = %w[uuid interval jsonb text[]].freeze

def call(sql, values, kinds = [])
  return DB.exec_params(sql, values, 1) if WAY == 'binary' && (kinds & TEXT_ONLY).empty?
  return DB.exec_params(sql, values) unless WAY == 'prepared'

  name = Digest::SHA256.hexdigest(sql)
  @prepared ||= {}
  @prepared[name] ||= DB.prepare(name, sql)
  DB.exec_prepared(name, values)
end

def show(value, kind)
  return 'null' if value.nil?

  text = if kind == 'text[]'
           value.map { |item| encode(item) }.join('|')
         else
           encode(SHOWN.fetch(kind, :to_s.to_proc).call(value).to_s)
         end
  "#{value.class}=#{text}"
end

# Time#to_s would leave out what is below the second.
def moment(value) = value.is_a?(Time) ? value.iso8601(6) : value

def argument(parameter, kept)
  kind, text = parameter.split('=', 2)
  return if kind == 'null'
  return moment(kept[text[1..]]) if text.start_with?('@')
  return NATIVE[kind].call(text) if kind == 'text[]'

  NATIVE.fetch(kind, :itself.to_proc).call(decode(text))
end

def step(kept, what, sql, parameters, columns)
  unless what == 'query'
    DB.exec(what.end_with?('savepoint') ? "#{what} s" : what)
    return []
  end
  kinds, names = columns.split.map { |column| column.split('>').values_at(0, 1) }.transpose
  values = parameters.split.map { |parameter| argument(parameter, kept) }
  call(decode(sql), values, kinds).values.map do |row|
    names.zip(row) { |name, value| kept[name] = value if name }
    row.zip(kinds).map { |value, kind| show(value, kind) }.join(' ')
  end
end

def conformance(lines)
  kept = {}
  lines.each do |line|
    number, *fields = line.split("\t", -1)
    puts [number, 'ok', *step(kept, *fields)].join("\t")
  rescue PG::Error => e
    state = e.result&.error_field(PG::PG_DIAG_SQLSTATE) || encode(e.message)
    puts [number, 'error', state, e.result&.error_field(PG::PG_DIAG_COLUMN_NAME)].join("\t")
  end
end

def effect(flow, key)
  call('INSERT INTO effect VALUES ($1, $2, $3, $4)', [flow, key, ME, Process.pid])
end

def body_for(key) = "#{key} by #{ME}, #{Process.pid} \u{1FAD6}"

def transactional(key)
  DB.transaction do
    outcome, body = call(<<~SQL, [key, JSON.generate(key: key)]).values.first
      SELECT outcome, response_body
      FROM idem_claim('race', $1, request => $2, wait => '20 ms')
    SQL
    if outcome == 'claimed'
      body = body_for(key)
      effect('transactional', key)
      call("SELECT idem_finish('race', $1, response_body => $2)", [key, body])
    end
    [outcome, body]
  end
end

def leased(key)
  outcome, token, body = call(<<~SQL, [key, JSON.generate(key: key)]).values.first
    SELECT outcome, token, response_body
    FROM idem_claim('leased race', $1, request => $2, lease => '10 min')
  SQL
  if outcome == 'claimed'
    effect('outside', key)
    body = body_for(key)
    DB.transaction do
      effect('leased', key)
      call("SELECT idem_finish('leased race', $1, token => $2, response_body => $3)", [key, token, body])
    end
  end
  [outcome, body]
end

def race(turns)
  until turns.empty?
    flow, key = turn = turns.shift
    outcome, body = send(flow, key)
    puts [flow, key, outcome, encode(body.to_s)].join("\t")
    turns << turn if outcome == 'in_progress'
  end
end

lines = $stdin.each_line(chomp: true).map { |line| line.force_encoding('UTF-8') }
if ME
  race(lines.map { |line| line.split("\t") })
else
  conformance(lines)
end
DB.close
