# Security.  Whatever an unprivileged role prepares before or after the
# extension is installed, nothing of it is executed by others; each role can
# do what its privilege set says and no more; and no log line of ours shows a
# request, a response, a token or a fingerprint.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('security');
$node->init;
$node->append_conf('postgresql.conf',
	"autovacuum = off\nlog_statement = none\nlog_lock_waits = on\ndeadlock_timeout = 10ms\n");
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }

# --- Before the extension: an attacker takes the names ----------------------------

sql(q{
	CREATE ROLE evil LOGIN;
	GRANT CREATE ON SCHEMA public TO evil;
	GRANT CREATE ON DATABASE postgres TO evil});

my $evil = session($node, user => 'evil');
my $super = session($node);

my $offset = 0;
sub trapped { return slurp_file($node->logfile, $offset) =~ /sprung: / }

# Each of these is in the way of one name; the install must fail, and leave
# nothing behind.
my %in_the_way = (
	'the table' => ['CREATE TABLE public.idem_record (LIKE pg_class)', 'DROP TABLE public.idem_record'],
	'a view by the name of the table' =>
	  [ 'CREATE VIEW public.idem_record AS SELECT 1', 'DROP VIEW public.idem_record' ],
	'a type by the name of the table' =>
	  [ 'CREATE TYPE public.idem_record AS ENUM ()', 'DROP TYPE public.idem_record' ],
	'an index' => [
		'CREATE TABLE public.t (a int); CREATE INDEX idem_record_sweep_idx ON public.t (a)',
		'DROP TABLE public.t' ],
	'a view' => [ 'CREATE TABLE public.idem_unresolved (a int)', 'DROP TABLE public.idem_unresolved' ],
	'a function' => [
		q{CREATE FUNCTION public.idem_lookup(scope text, key text, principal text DEFAULT '') RETURNS text
			LANGUAGE sql AS 'SELECT ''sprung'''},
		'DROP FUNCTION public.idem_lookup' ],
	'an overload that fits better' => [
		q{CREATE FUNCTION public.idem_claim(scope text, key text) RETURNS text LANGUAGE plpgsql AS
			'BEGIN RAISE LOG ''sprung: claim''; RETURN ''''; END'},
		'DROP FUNCTION public.idem_claim' ],
	'a helper' => [
		q{CREATE FUNCTION public.idem_privilege_set(privilege text) RETURNS SETOF text LANGUAGE plpgsql AS
			'BEGIN RAISE LOG ''sprung: set''; RETURN; END'},
		'DROP FUNCTION public.idem_privilege_set' ],
	'an aggregate' => [
		q{CREATE AGGREGATE public.idem_sweep(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0')},
		'DROP AGGREGATE public.idem_sweep(int)' ],
);
for my $object (sort keys %in_the_way)
{
	my ($create, $drop) = @{ $in_the_way{$object} };
	is($evil->do($create), '', "evil has made $object");
	like($super->do('CREATE EXTENSION idempotency SCHEMA public'),
		qr/^ERROR 42(723|P07|710|725)$/, "the install fails on $object");
	is(sql(q{SELECT count(*) FROM pg_extension WHERE extname = 'idempotency'}),
		'0', 'and leaves nothing');
	is($evil->do($drop), '', 'out of the way again');
}

# Traps that bear no name of ours: operators and functions of the names that
# the install script and the library use, in a schema that everybody's search
# path has first.  A trap tells the log that it was sprung, which outlives a
# rollback.
my $traps = q{
	CREATE SCHEMA evil;
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
	DO $do$
	DECLARE
		types CONSTANT regtype[] := '{text,name,integer,bigint,oid,timestamptz,interval,bytea,uuid,jsonb,boolean,"char",text[],regclass,numeric,double precision}';
		schema text;
		l regtype;
		r regtype;
		op text;
		f record;
	BEGIN
		FOREACH schema IN ARRAY '{evil,public}'::text[] LOOP
			FOREACH l IN ARRAY types LOOP
				FOREACH r IN ARRAY types LOOP
					EXECUTE format('CREATE FUNCTION %I.trap(%s, %s) RETURNS boolean LANGUAGE plpgsql AS
						''BEGIN RAISE LOG ''''sprung: operator of %s, %s''''; RETURN true; END''', schema, l, r, l, r);
					FOREACH op IN ARRAY '{=,<>,<,<=,>,>=,-,+,*,/,||,~,~~,!~}'::text[] LOOP
						EXECUTE format('CREATE OPERATOR %I.%s (FUNCTION = %I.trap, LEFTARG = %s, RIGHTARG = %s)',
							schema, op, schema, l, r);
					END LOOP;
				END LOOP;
			END LOOP;
			-- all of these names but those with variadic "any", which only C can have
			FOR f IN SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS args,
					pg_get_function_result(p.oid) AS result
				FROM pg_catalog.pg_proc p
				WHERE p.prokind = 'f' AND p.pronamespace = 'pg_catalog'::regnamespace
					AND p.proname = ANY ('{clock_timestamp,now,octet_length,length,format,quote_ident,has_schema_privilege,pg_extension_config_dump,textcat,texteq,current_setting,set_config,row_to_json,gen_random_uuid,sha256,pg_relation_size,to_char,round,date_trunc}')
					AND NOT '"any"'::regtype = ANY (p.proargtypes::oid[])
			LOOP
				EXECUTE format('CREATE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE plpgsql AS
					''BEGIN RAISE LOG ''''sprung: function %s''''; RETURN %s; END''',
					schema, f.proname, f.args, f.result, f.proname,
					CASE f.result WHEN 'void' THEN '' ELSE 'NULL' END);
			END LOOP;
			EXECUTE format('CREATE FUNCTION %I.step(bigint) RETURNS bigint LANGUAGE plpgsql AS
				''BEGIN RAISE LOG ''''sprung: aggregate''''; RETURN 0; END''', schema);
			EXECUTE format('CREATE AGGREGATE %I.count(*) (SFUNC = %I.step, STYPE = bigint)', schema, schema);
			EXECUTE format('CREATE TABLE %I.pg_extension (extname name, extnamespace oid)', schema);
			EXECUTE format('CREATE TABLE %I.pg_depend (refclassid oid)', schema);
		END LOOP;
		CREATE TABLE evil.idem_record (LIKE pg_catalog.pg_class);
		CREATE FUNCTION evil.idem_privilege_set(text) RETURNS SETOF text LANGUAGE plpgsql AS
			'BEGIN RAISE LOG ''sprung: privilege set''; RETURN; END';
	END
	$do$};

is($evil->do($traps), '', 'evil has laid its traps');
is($evil->do(q{SET search_path = evil, pg_catalog; SELECT 'a'::text = 'b'::text}), 't', 'they work on evil itself');
ok(trapped(), 'and tell the log');
$offset = -s $node->logfile;

my $with_traps = 'SET search_path = evil, public, pg_catalog';
is($super->do("$with_traps; CREATE EXTENSION idempotency SCHEMA public"), '', 'the extension is installed');

sql(q{CREATE ROLE bare LOGIN; CREATE ROLE client LOGIN; CREATE ROLE monitor LOGIN;
	CREATE ROLE operator LOGIN; CREATE ROLE "we ird"";role" LOGIN});
is( $super->do(qq{
		$with_traps;
		SELECT outcome FROM public.idem_claim('s', 'k', request => '{}', lease => '1 h',
			claim_token => '00000000-0000-4000-8000-000000000001');
		SELECT outcome FROM public.idem_claim('s', 'k', request => '[]');
		SELECT public.idem_extend('s', 'k', token => '00000000-0000-4000-8000-000000000001') IS NULL;
		SELECT public.idem_checkpoint('s', 'k', token => '00000000-0000-4000-8000-000000000001', checkpoint => 'c') IS NULL;
		SELECT public.idem_assert('s', 'k', token => '00000000-0000-4000-8000-000000000001') IS NULL;
		SELECT outcome FROM public.idem_takeover('s', 'k', lease => '1 ms', force => true);
		SELECT pg_sleep(0.01) IS NULL;
		SELECT unresolved FROM public.idem_health;
		SELECT key FROM public.idem_unresolved;
		SELECT unresolved FROM public.idem_stats;
		SELECT records FROM public.idem_report;
		INSERT INTO public.idem_policy VALUES ('t', '1 d', '1 h', '0', 'retry', 'client');
		SELECT outcome FROM public.idem_resolve('s', 'k', state => 'succeeded', response_body => 'ok');
		SELECT outcome FROM public.idem_lookup('s', 'k');
		SELECT public.idem_once('s', 'o', ttl => '1 us');
		SELECT public.idem_once_batch('s', '{a}');
		SELECT outcome FROM public.idem_execute('s', 'x', command => 'SELECT 1');
		SELECT deleted FROM public.idem_sweep();
		CALL public.idem_sweep_all();
		SELECT public.idem_forget('s', 'a');
		SELECT public.idem_grant('client');
		SELECT public.idem_grant('monitor', 'monitor');
		SELECT public.idem_grant('operator', 'operator');
		SELECT public.idem_grant('"we ird"";role"', 'operator');
		SELECT public.idem_revoke('"we ird"";role"', 'operator');
	}),
	join("\n", qw(claimed mismatch f f f claimed f 1 k 1 1 replayed replayed t a executed 1 t)),
	'everything works for a superuser whose search path is full of traps');
ok(!trapped(), 'no trap was sprung');

# Temporary objects come first in any search path, but only in one's own session.
is( session($node, user => 'client')->do(q{
		CREATE TEMP TABLE idem_record (LIKE pg_class);
		CREATE TEMP VIEW idem_health AS SELECT 1;
		SET search_path = pg_temp, evil, public;
		SELECT outcome FROM public.idem_claim('s', 'temporary', lease => '1 h');
		SELECT count(*) FROM pg_temp.idem_record}),
	"claimed\n0", 'a temporary table of the name is not taken for the table');
is(sql(q{SELECT count(*) FROM idem_record WHERE key = 'temporary'}), '1', 'the table has the row');

is($evil->do(q{CREATE FUNCTION evil.idem_lookup(scope text, key text, principal text = '', OUT outcome text)
	LANGUAGE c AS '$libdir/idempotency'}), 'ERROR 42501', 'evil cannot make the library look elsewhere');
is($evil->do(q{CREATE EXTENSION idempotency}), 'ERROR 42710', 'nor install it again');
is($evil->do(q{DROP EXTENSION idempotency}), 'ERROR 42501', 'nor drop it');
is(session($node, user => 'bare')->do(q{CREATE EXTENSION amcheck}),
	'ERROR 42501', 'an extension that is not trusted needs a superuser');
is(sql(q{SELECT bool_or(trusted) FROM pg_available_extension_versions WHERE name = 'idempotency'}),
	'f', 'as this one is not');

# --- Who may do what ---------------------------------------------------------------

sql(q{DROP OWNED BY evil; GRANT CREATE ON SCHEMA public TO evil});

my $no_one = '00000000-0000-4000-8000-000000000009';
my %calls = (
	public => [q{SELECT idem_fingerprint('{}')}],
	client => [
		q{SELECT idem_claim('m', 'k', lease => '1 h')},
		"SELECT idem_finish('m', 'k', token => '$no_one')",
		q{SELECT idem_lookup('m', 'k')},
		"SELECT idem_extend('m', 'k', token => '$no_one')",
		"SELECT idem_checkpoint('m', 'k', token => '$no_one', checkpoint => 'c')",
		"SELECT idem_assert('m', 'k', token => '$no_one')",
		q{SELECT idem_once('m', 'o')},
		q{SELECT idem_once_batch('m', '{a,b}')},
		q{SELECT idem_execute('m', 'x', command => 'SELECT 1')} ],
	monitor => [ 'SELECT * FROM idem_unresolved', 'SELECT * FROM idem_health', 'SELECT * FROM idem_stats',
		'SELECT * FROM idem_report' ],
	policies => [
		q{SELECT * FROM idem_policy}, q{INSERT INTO idem_policy VALUES ('unused', '1 d')},
		q{UPDATE idem_policy SET ttl = '2 d' WHERE scope = 'unused'}, q{DELETE FROM idem_policy WHERE scope = 'unused'} ],
	operator => [
		'SELECT idem_sweep()', 'CALL idem_sweep_all()',
		q{SELECT idem_takeover('m', 'k')}, q{SELECT idem_resolve('m', 'k', state => 'failed')},
		q{SELECT idem_forget('m', 'k')} ],
	owner => [
		'SELECT * FROM idem_record', 'SELECT count(*) FROM idem_record',
		q{UPDATE idem_record SET state = 'failed'}, 'DELETE FROM idem_record', 'TRUNCATE idem_record',
		q{SELECT 1 FROM idem_record FOR UPDATE}, q{DO 'BEGIN LOCK idem_record IN ACCESS SHARE MODE; END'},
		q{SELECT idem_grant('bare')}, q{SELECT idem_revoke('bare')},
		q{SELECT idem_privilege_set('client')}, 'TRUNCATE idem_policy', 'SELECT idem_policy_changed()',
		'ALTER TABLE idem_policy DISABLE TRIGGER ALL' ],
);
my %may = (
	bare => [qw(public)],
	client => [qw(public client)],
	monitor => [qw(public monitor)],
	operator => [qw(public client monitor operator policies)],
);
for my $role (sort keys %may)
{
	my $s = session($node, user => $role);
	my %allowed = map { $_ => 1 } @{ $may{$role} };
	for my $set (sort keys %calls)
	{
		for my $call (@{ $calls{$set} })
		{
			my $said = $s->do($call);
			if ($allowed{$set}) { unlike($said, qr/42501/, "$role may: $call") }
			else { is($said, 'ERROR 42501', "$role may not: $call") }
		}
	}
}
is( sql(q{SELECT count(*) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
		WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency')
			AND d.classid = 'pg_proc'::regclass}),
	scalar(map { @{ $calls{$_} } } qw(public client operator)) + 4, 'no function was left out here');

sql(q{CREATE ROLE member LOGIN IN ROLE client});
is(session($node, user => 'member')->do(q{SELECT outcome FROM idem_claim('m', 'member', lease => '1 h')}),
	'claimed', 'a member of a client is one');
sql(q{SELECT idem_revoke('operator', 'operator'); SELECT idem_grant('operator', 'client')});
my $former = session($node, user => 'operator');
is($former->do('SELECT idem_sweep()'), 'ERROR 42501', 'what is revoked is gone');
is($former->do(q{SELECT outcome FROM idem_lookup('m', 'nothing')}), 'absent', 'what is granted again is there');

# Granting is a plain GRANT with the caller's rights.
sql(q{GRANT EXECUTE ON FUNCTION idem_grant, idem_privilege_set TO client});
is(session($node, user => 'client')->do(q{SELECT idem_grant('bare', 'operator')}),
	'ERROR 42501', 'a client cannot make somebody an operator');
is(session($node, user => 'bare')->do('SELECT idem_sweep()'), 'ERROR 42501', 'and has not');
for my $bad (q{'bare', 'owner'}, q{'bare', NULL}, q{NULL, 'client'})
{
	is($super->do("SELECT public.idem_grant($bad)"), 'ERROR 22023', "idem_grant($bad)");
}
is($super->do(q{SELECT public.idem_grant('nobody at all')}), 'ERROR 42602', 'a name that is no identifier');
is($super->do(q{SELECT public.idem_grant('nobody')}), 'ERROR 42704', 'a role that does not exist');

# --- Logs -----------------------------------------------------------------------------

# The sentinels reach the server in statements that nobody logs, and the calls
# name columns instead of values, so that the text of a statement shows none.
my %sentinel = map { $_ => "sentinel-$_-" . join '', map { chr 97 + rand 26 } 1 .. 12 } qw(request body header checkpoint);
my $given = join '-', map { sprintf '%0*x', $_, 16**($_ - 1) + int rand 16**($_ - 1) } 8, 4, 4, 4;
$given .= '-' . join '', map { sprintf '%x', rand 16 } 1 .. 12;
sql(qq{
	CREATE TABLE secret AS SELECT '{"pan": "$sentinel{request}"}'::jsonb AS request,
		'{"pan": "another $sentinel{request}"}'::jsonb AS other_request,
		'$sentinel{body}'::text AS body, '{"Set-Cookie": "$sentinel{header}"}'::jsonb AS headers,
		'$sentinel{checkpoint}'::text AS checkpoint, '$given'::uuid AS given,
		gen_random_uuid() AS stranger;
	CREATE TABLE made (token uuid)});
$offset = -s $node->logfile;
$node->append_conf('postgresql.conf', "log_min_messages = debug5\nlog_min_error_statement = debug5\nlog_error_verbosity = verbose\n");
$node->restart;

my $messages = '';
sub said
{
	my ($sql, $state, $what) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");
	$messages .= $err;
	like($err, qr/ERROR:  $state/, "$what: $state") if $state;
	is($err, '', $what) unless $state;
	return;
}

my $long_claim = q{lease => '1 h', request => request};
said(qq{INSERT INTO made SELECT token FROM secret, idem_claim('l', 'k', $long_claim)}, '', 'a claim');
said(qq{SELECT idem_claim('l', 'given', claim_token => given, $long_claim) FROM secret}, '', 'its token given');
said(q{SELECT outcome FROM secret, idem_claim('l', 'k', request => other_request)}, '', 'a mismatch');
said(q{SELECT idem_checkpoint('l', 'k', token => token, checkpoint => checkpoint, checkpoint_data => headers)
	FROM secret, made}, '', 'a checkpoint');
for my $call ('idem_finish', 'idem_extend', 'idem_assert')
{
	said("SELECT $call('l', 'k', token => stranger) FROM secret", 'ID001', "$call by a stranger");
	said("SELECT $call('l', 'nothing', token => stranger) FROM secret", 'ID001', "$call of nothing");
	said("SELECT $call('l', 'k')", '22023', "$call without a token");
}
said(q{SELECT idem_finish('l', 'k', token => token, response_body => body, response_bytes => body::bytea)
	FROM secret, made}, '22023', 'two bodies');
said(q{SELECT idem_finish('l', 'k', token => token, state => 'unknown', response_body => body)
	FROM secret, made}, '22023', 'a response where none goes');
said(q{SET idempotency.max_response = '10B'; SELECT idem_finish('l', 'k', token => token, response_body => body,
	response_headers => headers) FROM secret, made}, '54000', 'a large response');
said(q{SET idempotency.max_response = '10B'; SELECT idem_checkpoint('l', 'k', token => token, checkpoint => checkpoint)
	FROM secret, made}, '54000', 'a large checkpoint');
said(q{SELECT idem_claim('l', body || E'\t') FROM secret}, '22023', 'a control character in the key');
said(q{SELECT idem_claim('l', 'k', request::text) FROM secret}, '22023', 'a request in the wrong place');
said(q{SELECT idem_claim('l', 'k', fingerprint => substr(idem_fingerprint(request), 1, 31)) FROM secret},
	'22023', 'a short fingerprint');
said(q{SELECT idem_claim('l', 'k', request => request, fingerprint => idem_fingerprint(request)) FROM secret},
	'22023', 'two fingerprints');
said(q{SELECT (idem_claim('l', 'expanded', request => request)).* FROM secret}, '0A000', 'a call expanded');
said(q{BEGIN; SELECT idem_claim('l', 'open', request => request) FROM secret; COMMIT}, 'ID002', 'an open claim');
said(q{SELECT idem_finish('l', 'given', token => given, state => 'released') FROM secret}, '', 'a release');
said(q{SELECT idem_claim('l', 'given', lease => '1 h', request => request, claim_token => given) FROM secret},
	'22023', 'a token used twice');
said(q{SELECT idem_finish('l', 'k', token => token, response_body => body, response_headers => headers)
	FROM secret, made}, '', 'a finish');
said(q{SELECT idem_finish('l', 'k', token => token, state => 'failed') FROM made}, 'ID001', 'another finish');
said(q{SELECT count(response_body) FROM secret, idem_claim('l', 'k', request => request)}, '', 'a replay');
said(q{SELECT idem_execute('l', 'x', '', request, 'SELECT jsonb_build_object($1, 1)') FROM secret},
	'22023', 'a command that fails');
said(q{SELECT idem_execute('l', 'x', '', request, 'SELECT $1, $1') FROM secret}, '42804',
	'a command with a strange result');
said(q{SELECT idem_execute('l', 'x', '', request, 'SELECT $1 UNION ALL SELECT $1') FROM secret}, '21000',
	'a command with two results');
said(q{SELECT idem_execute('l', 'x', '', request, 'SELECT $1; SELECT 2') FROM secret}, '22023', 'two commands');
said(q{SELECT idem_once('l', 'given')}, '55006', 'once on a claim');

# A wait that is logged while it lasts.
my $holder = session($node);
my $waiter = session($node);
said(q{SELECT count(c.outcome) FROM secret, idem_claim('l', 'waits', lease => '1 h', claim_token => stranger) c},
	'', 'a claim that is locked');
$holder->do(q{BEGIN; SELECT 1 FROM idem_record WHERE key = 'waits' FOR UPDATE});
$waiter->send(q{SELECT idem_finish('l', 'waits', token => stranger, response_body => body) FROM secret});
$node->wait_for_log(qr/still waiting for/, $offset);
$holder->do('ROLLBACK');
is($waiter->result, 't', 'a finish that had to wait');

my $log = slurp_file($node->logfile, $offset);
like($log, qr/DEBUG: /, 'the log is at its most talkative');
like($log, qr/ERROR:  ID001: the claim of idempotency key "k"/, 'and has our messages');
my %secret = (%sentinel, 'given token' => $given, 'other token' => sql('SELECT stranger FROM secret'),
	'token' => sql('SELECT token FROM made'),
	map { ("fingerprint $_" => $_) } split /\n/,
	sql(q{SELECT substr(encode(idem_fingerprint(f), 'hex'), 1, 24) FROM secret, unnest(ARRAY[request, other_request]) f}));
for my $name (sort keys %secret)
{
	my $value = $secret{$name};
	unlike($messages, qr/\Q$value\E/i, "no message has the $name");
	ok($log !~ /\Q$value\E/i, "no line of the log has the $name");
}

$node->stop;
done_testing();
