# The life of the extension in a database: dumps carry records, tokens and grants;
# the schema can be moved and have any name; sessions live on through all of it;
# and what depends on the extension protects it.  (pg_upgrade is in test/life.)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# in UTF8 whatever the environment says: the records hold more than ASCII
my %utf8 = (extra => ['--encoding=UTF8', '--locale=C']);
my $node = new_node('dump', conf => "max_prepared_transactions = 2\n", init => \%utf8);
my $odd = '"we ird; schema"';
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql { my ($sql, $db) = @_; return $node->safe_psql($db // 'postgres', $sql) }

sql(q{
	CREATE ROLE app LOGIN; CREATE ROLE watch LOGIN; CREATE ROLE ops LOGIN; CREATE ROLE bare LOGIN;
	CREATE ROLE "o""dd; role" LOGIN;
	CREATE ROLE dumper LOGIN; GRANT pg_read_all_data TO dumper});

# --- Dump and restore -------------------------------------------------------------

my $tokens = q{SELECT string_agg(key || ' ' || token, E'\n' ORDER BY scope, key) FROM idem_record};
my $records = q{SELECT string_agg(r::text, E'\n' ORDER BY r::text COLLATE "C") FROM idem_record r};
my $policies = q{SELECT string_agg(p::text, E'\n' ORDER BY scope) FROM idem_policy p};
my $grants = q{
	SELECT string_agg(concat_ws(' ', m, acl), E'\n' ORDER BY m) FROM (
		SELECT p.oid::regprocedure::text AS m,
			(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(coalesce(proacl, acldefault('f', proowner))) a) AS acl
		FROM pg_proc p WHERE p.proname LIKE 'idem%'
		UNION ALL
		SELECT c.oid::regclass::text,
			(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(coalesce(relacl, acldefault('r', relowner))) a)
		FROM pg_class c WHERE c.relname LIKE 'idem%' AND relkind IN ('r', 'v')
		UNION ALL
		SELECT nspname,
			(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(nspacl) a)
		FROM pg_namespace WHERE nspname = 'we ird; schema'
	) members (m, acl)};

# Every state, and values that are easily spoiled.
my $work = q{
	BEGIN;
	SELECT idem_claim('s', 'done', 'me', '{"a": 1}');
	SELECT idem_finish('s', 'done', 'me', response_code => 201, response_headers => '{"h": "\\\\ \" \u00e9"}',
		response_body => E'tab\t newline\n backslash \\\\ \\\\. end');
	SELECT idem_claim('s', E'\\\\N');
	SELECT idem_finish('s', E'\\\\N', state => 'failed', response_bytes => '\x00ff5c');
	SELECT idem_claim('s', 'released');
	SELECT idem_finish('s', 'released', state => 'released');
	SELECT idem_claim('s', 'large');
	SELECT idem_finish('s', 'large', response_body => repeat('0123456789', 100000));
	COMMIT;
	SELECT idem_claim('s', 'leased', lease => '1 h', ttl => '3 d 1 us');
	SELECT idem_claim('s', 'retry', lease => '1 h', on_abandon => 'retry');
	SELECT idem_claim('s', 'lapsed', lease => '1 ms');
	SELECT idem_claim('s', 'checkpointed', lease => '1 h');
	SELECT idem_checkpoint('s', 'checkpointed', token => token, checkpoint => 'c', checkpoint_data => '[1]')
		FROM idem_record WHERE key = 'checkpointed';
	SELECT idem_claim('s', 'unknown', lease => '1 h');
	SELECT idem_finish('s', 'unknown', token => token, state => 'unknown')
		FROM idem_record WHERE key = 'unknown';
	SELECT idem_once('s', 'once');
	INSERT INTO idem_policy VALUES (E't\\\\N "x"', '2 d 1 us', '1 min', '0', 'retry', 'o"dd; role'),
		('closed', '5 h', NULL, NULL, NULL, 'app'), ('orphan', NULL, NULL, NULL, NULL, 'no such role')};
sql($work);
sql(q{SELECT idem_grant('app'); SELECT idem_grant('watch', 'monitor'); SELECT idem_grant('ops', 'operator');
	SELECT idem_grant('"o""dd; role"'); SELECT idem_grant('bare'); SELECT idem_revoke('bare');
	REVOKE EXECUTE ON FUNCTION idem_fingerprint FROM PUBLIC});

my %dumps = (
	plain => [],
	custom => ['--format=custom'],
	inserts => ['--column-inserts'],
	directory => [ '--format=directory', '--jobs=2' ],
);
for my $format (sort keys %dumps)
{
	command_ok(
		[ 'pg_dump', @{ $dumps{$format} }, '--file', "$dir/$format", '--username', 'dumper',
			'--host', $node->host, '--port', $node->port, 'postgres' ],
		"dumped by a role that may only read: $format");
}
my ($tokens_then, $records_then, $grants_then, $policies_then) =
  (sql($tokens), sql($records), sql($grants), sql($policies));
my $late = sql(q{SELECT token FROM idem_claim('s', 'late', lease => '1 h')});
my $later = sql(q{SELECT token FROM idem_takeover('s', 'lapsed', lease => '1 h')});
my $early = sql(q{SELECT token FROM idem_record WHERE key = 'leased'});

sub restore
{
	my ($format, $db, @options) = @_;
	my @server = ('--host', $node->host, '--port', $node->port, '--dbname', $db);
	return command_ok(
		$format =~ /plain|inserts/
		? [ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', @server, '-f', "$dir/$format" ]
		: [ 'pg_restore', '--exit-on-error', @options, @server, "$dir/$format" ],
		"restored: $format " . join ' ', @options);
}

sub check_restored
{
	my ($db, $what) = @_;
	is(sql('SELECT count(*) FROM idem_record', $db), '10', "$what: ten records");
	is(sql($tokens, $db), $tokens_then, "$what: tokens");
	ok(sql($records, $db) eq $records_then, "$what: records, in every column");
	is(sql($grants, $db), $grants_then, "$what: grants");
	is(sql($policies, $db), $policies_then, "$what: policies, also of a role that does not exist");
	return;
}

for my $format (sort keys %dumps)
{
	sql("CREATE DATABASE restored_$format");
	restore($format, "restored_$format");
	check_restored("restored_$format", $format);
}

# Only the extension needs a superuser; its data can be loaded by anybody who
# may insert.
sql('CREATE DATABASE loaded');
sql(q{CREATE EXTENSION idempotency; GRANT INSERT ON idem_record, idem_policy TO bare}, 'loaded');
restore('custom', 'loaded', '--data-only', '--username', 'bare');
is(sql($tokens, 'loaded'), $tokens_then, 'data alone: tokens');
ok(sql($records, 'loaded') eq $records_then, 'data alone: records');
is(sql($policies, 'loaded'), $policies_then, 'data alone: policies');
sql('DROP DATABASE loaded');

# The owner of a database is enough for all but creating the extension and
# granting its privileges: a dump of everything in it, and its restoration where
# a superuser has created the extension.
sql('CREATE ROLE keeper LOGIN');
for my $db (qw(owned owned_too))
{
	sql("CREATE DATABASE $db OWNER keeper");
	sql('CREATE SCHEMA idem; CREATE EXTENSION idempotency SCHEMA idem; GRANT USAGE ON SCHEMA idem TO keeper', $db);
}
my @as_keeper = ('--username', 'keeper', '--host', $node->host, '--port', $node->port);
my $keeper = session($node, dbname => 'owned', user => 'keeper');
$keeper->do('CREATE SCHEMA shop CREATE TABLE orders (id int); INSERT INTO shop.orders VALUES (7)');
sql("SET search_path = idem; $work; SELECT idem_grant('app')", 'owned');
command_fails_like([ 'pg_dump', @as_keeper, '--file', "$dir/refused", 'owned' ],
	qr/permission denied for table idem_(?:record|policy)/, 'what its owner may not read is not left out of a dump in silence');
sql('GRANT SELECT ON idem.idem_record, idem.idem_policy TO keeper', 'owned');
sql('GRANT INSERT ON idem.idem_record, idem.idem_policy TO keeper', 'owned_too');
my @own = ('--no-comments', '--no-privileges');
command_ok([ 'pg_dump', @as_keeper, @own, '--file', "$dir/plain owned", 'owned' ], 'dumped by its owner: plain');
command_ok([ 'pg_dump', @as_keeper, '--format=custom', '--file', "$dir/owned", 'owned' ], 'dumped by its owner: custom');

sub check_owned
{
	my ($what) = @_;
	for my $query ($tokens, $records, $policies)
	{
		my $path = 'SET search_path = idem;';
		ok(sql("$path $query", 'owned_too') eq sql("$path $query", 'owned'), "$what: tokens, records and policies");
	}
	is(sql('SELECT id FROM shop.orders', 'owned_too'), '7', "$what: what is its own");
	sql('DROP SCHEMA shop CASCADE; DELETE FROM idem.idem_record; DELETE FROM idem.idem_policy', 'owned_too');
	return;
}
# the schema has to be there before the extension: it is left out, or its error ignored
my ($list) = run_command([ 'pg_restore', '--list', "$dir/owned" ]);
append_to_file("$dir/list", join "\n", grep { !/ SCHEMA - idem / } split /\n/, $list);
restore('owned', 'owned_too', @as_keeper[ 0, 1 ], @own, '--use-list', "$dir/list");
check_owned('custom, restored by its owner');
run_log([ 'psql', '-X', '-q', @as_keeper, '-d', 'owned_too', '-f', "$dir/plain owned" ]);
check_owned('plain, restored by its owner');
is( session($node, dbname => 'owned_too', user => 'app')->do(q{SELECT outcome FROM idem.idem_claim('s', 'new', lease => '1 h')}),
	'ERROR 42501', 'grants are not its owner\'s to give');
restore('owned', 'owned_too', '--schema-only', '--use-list', "$dir/list");
is( session($node, dbname => 'owned_too', user => 'app')->do(q{SELECT outcome FROM idem.idem_claim('s', 'new', lease => '1 h')}),
	'claimed', 'a superuser restores them from the same dump');

# A dump of some schemas or tables has the records if it names theirs.
for my $which (
	[ [qw(--schema=shop)], 0 ], [ [qw(--schema=idem)], 1 ],
	[ [qw(--table=idem.idem_record)], 1 ], [ [qw(--exclude-table-data=idem.idem_record)], 0 ])
{
	my ($options, $there) = @$which;
	my ($dump) = run_command([ 'pg_dump', @as_keeper, @$options, 'owned' ]);
	is($dump =~ /^COPY idem\.idem_record/m ? 1 : 0, $there, "pg_dump @$options");
}
$keeper->quit;
sql("DROP DATABASE $_ WITH (FORCE)") for qw(owned owned_too);
sql('DROP ROLE keeper');

# Once more over what was restored, after it was used.
sql(q{SELECT idem_forget('s', 'done', 'me'); SELECT idem_claim('s', 'other', lease => '1 h');
	UPDATE idem_policy SET role = NULL}, 'restored_custom');
restore('custom', 'restored_custom', '--clean', '--if-exists');
check_restored('restored_custom', 'a second time');

my $s = session($node, dbname => 'restored_plain', user => 'app');
is($s->do(q{SELECT outcome, response_body LIKE E'tab\t %. end' FROM idem_claim('s', 'done', 'me', '{"a": 1}')}),
	'replayed|t', 'what was done replays to those who were granted it');
is($s->do(q{SELECT outcome FROM idem_claim('s', 'unknown')}), 'unknown', 'unknown is unknown');
is($s->do("SELECT idem_finish('s', 'leased', token => '$early')"), 't',
	'a token from before the dump is good');
is($s->do("SELECT idem_finish('s', 'late', token => '$late')"), 'ERROR ID001',
	'a token from after the dump is lost');
is($s->do("SELECT idem_finish('s', 'lapsed', token => '$later')"), 'ERROR ID001',
	'so is that of a later takeover');
my $again = $s->do(q{SELECT token FROM idem_claim('s', 'late', lease => '1 h')});
isnt($again, $late, 'a key that was claimed after the dump is free, under a token of its own');
is($s->do("SELECT idem_finish('s', 'late', token => '$late')"), 'ERROR ID001',
	'which the lost one does not fit');
is($s->do('SELECT idem_sweep()'), 'ERROR 42501', 'no more was granted than before');
is($s->do(q{SELECT idem_once('closed', 'a')}), 't', 'a policy is in force where it was restored');
is(sql(q{SELECT ttl FROM idem_record WHERE scope = 'closed'}, 'restored_plain'), '05:00:00', 'by its defaults');
is(session($node, dbname => 'restored_plain', user => 'ops')->do(q{SELECT idem_once('closed', 'a')}),
	'ERROR 42501', 'and its role');
$s->quit;

sql("DROP DATABASE restored_$_") for qw(inserts directory);

# --- Roles that go ---------------------------------------------------------------------

$s = session($node);
for my $db (qw(restored_plain restored_custom))
{
	sql(q{DROP OWNED BY app, "o""dd; role"}, $db);
}
is($s->do('DROP ROLE app'), 'ERROR 2BP01', 'a role with grants cannot be dropped');
is( $s->do(q{SELECT idem_revoke('"o""dd; role"'); DROP ROLE "o""dd; role"}),
	'', 'one whose grants were revoked can');
is($s->do('DROP OWNED BY app; DROP ROLE app'), '', 'DROP OWNED takes grants with it');
unlike(sql($grants), qr/app|dd; role|\b\d+=/, 'and leaves no trace');
is(session($node, user => 'ops')->do(q{SELECT outcome FROM idem_lookup('s', 'done', 'me')}),
	'replayed', 'the others keep theirs');

# --- The schema -----------------------------------------------------------------------------

sql("CREATE SCHEMA $odd; CREATE SCHEMA plain");
$s->do("SET search_path = public, $odd, plain");
$s->do(q{PREPARE p AS SELECT outcome FROM idem_claim('move', $1, lease => '1 h')});
is($s->do(q{EXECUTE p('1')}), 'claimed', 'a session at work');
is($s->do(q{SELECT outcome FROM idem_execute('move', 'x', command => 'SELECT 1')}), 'executed', 'with a plan');
my $move = 0;
for my $schema ($odd, 'plain', 'public', $odd)
{
	$move++;
	sql("ALTER EXTENSION idempotency SET SCHEMA $schema");
	is($s->do(qq{EXECUTE p('1'); EXECUTE p('move $move')}), "in_progress\nclaimed",
		"it goes on when the extension has moved to $schema");
	is($s->do(q{SELECT outcome FROM idem_execute('move', 'x', command => 'SELECT 1')}), 'replayed',
		"$schema: idem_execute");
	is( sql(qq{SET search_path = pg_catalog;
			SELECT outcome FROM $schema.idem_lookup('move', '1');
			SELECT leased > 0 FROM $schema.idem_health;
			CALL $schema.idem_sweep_all();
			SELECT $schema.idem_grant('bare', 'operator');
			SELECT count(*) > 0 FROM $schema.idem_unresolved}), "in_progress\nt\n\nt",
		"$schema: found without a search path");
	is( session($node, user => 'bare')->do(qq{SELECT outcome FROM $schema.idem_claim('move', 'bare $move', lease => '1 h')}),
		'claimed', "$schema: what is granted can be used");
	sql("SELECT $schema.idem_revoke('bare', 'operator')");
	is( session($node, user => 'bare')->do(qq{SELECT outcome FROM $schema.idem_claim('move', 'c')}),
		'ERROR 42501', "$schema: until it is revoked");
}
is( $s->do(qq{
		BEGIN;
		SELECT outcome FROM idem_claim('move', 'within');
		ALTER EXTENSION idempotency SET SCHEMA plain;
		SELECT idem_finish('move', 'within');
		ALTER EXTENSION idempotency SET SCHEMA $odd;
		COMMIT;
		SELECT outcome FROM idem_lookup('move', 'within')}),
	"claimed\nt\nreplayed", 'it can move within a transaction that has a claim');
is( $s->do(qq{BEGIN; SELECT outcome FROM idem_claim('move', 'open');
		ALTER EXTENSION idempotency SET SCHEMA plain; COMMIT}),
	"claimed\nERROR ID002", 'which still must be finished');

# Any name that PostgreSQL takes, and that is quoted wrongly somewhere else.
sql(q{CREATE DATABASE names TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'});
for my $name ('Upper', 'with space', 'do.t', 'quo"te', q{apos'trophe}, 'back\\slash', "\xc3\xbcn\xc3\xafcode",
	'$1', '%s%n%I', 'select', 'public; drop', '1', '{brace,}', 'x' x 63, "\xe6\x97\xa5" x 21)
{
	my $schema = '"' . ($name =~ s/"/""/gr) . '"';
	is( sql(qq{
			SET search_path = pg_catalog;
			CREATE SCHEMA $schema;
			CREATE EXTENSION idempotency SCHEMA $schema;
			SELECT outcome FROM $schema.idem_claim('s', 'k', lease => '1 ms');
			SELECT outcome FROM $schema.idem_execute('s', 'x', command => 'SELECT 1');
			SELECT idem_once FROM $schema.idem_once('s', 'o', ttl => '1 ms');
			SELECT $schema.idem_grant('bare', 'operator');
			CALL $schema.idem_sweep_all()}, 'names'),
		"claimed\nexecuted\nt\n", "schema $schema");
	my $bare = session($node, dbname => 'names', user => 'bare');
	is( $bare->do(qq{
			SELECT key FROM $schema.idem_unresolved;
			SELECT outcome FROM $schema.idem_resolve('s', 'k', state => 'failed');
			SELECT outcome FROM $schema.idem_lookup('s', 'o');
			SELECT unresolved FROM $schema.idem_health}),
		"k\nreplayed\nabsent\n0", "schema $schema: what was granted can be used");
	$bare->quit;
	is( sql(qq{SELECT $schema.idem_revoke('bare', 'operator'); DROP EXTENSION idempotency; DROP SCHEMA $schema}, 'names'),
		'', "schema $schema: gone");
}
sql('DROP DATABASE names');

# The odd schema in a dump.
$dumps{odd} = ['--format=custom'];
command_ok([ 'pg_dump', '--format=custom', '--file', "$dir/odd", '--host', $node->host,
		'--port', $node->port, 'postgres' ], 'dumped from a schema of an odd name');
sql('CREATE DATABASE restored_odd');
restore('odd', 'restored_odd');
is(sql("SET search_path = $odd; $records", 'restored_odd') eq sql("SET search_path = $odd; $records"), '1',
	'restored there');
is(sql("SET search_path = $odd; $grants", 'restored_odd'), sql("SET search_path = $odd; $grants"),
	'grants of the odd schema');

# --- The end of it ------------------------------------------------------------------------------

sql(qq{CREATE TABLE business (key text); CREATE VIEW report AS SELECT * FROM $odd.idem_unresolved;
	CREATE VIEW answer AS SELECT l.* FROM $odd.idem_lookup('move', '1') l});
is($s->do('DROP EXTENSION idempotency'), 'ERROR 2BP01', 'what depends on it protects it');
is($s->do('DROP VIEW report; DROP EXTENSION idempotency'), 'ERROR 2BP01', 'whatever it uses');
is($s->do('BEGIN; DROP EXTENSION idempotency CASCADE; ROLLBACK; SELECT outcome FROM answer'),
	'in_progress', 'a drop that is rolled back');

# With a claim open, and finished, in the transaction that drops it.
is( $s->do(qq{BEGIN; SELECT outcome FROM idem_claim('move', 'open'); DROP EXTENSION idempotency CASCADE;
		COMMIT; SELECT to_regclass('$odd.idem_record') IS NULL, to_regclass('answer') IS NULL}),
	"claimed\nt|t", 'CASCADE takes it all');
is( sql(q{SELECT (SELECT count(*) FROM pg_proc WHERE proname LIKE 'idem%')
		+ (SELECT count(*) FROM pg_class WHERE relname LIKE 'idem%')
		+ (SELECT count(*) FROM pg_type WHERE typname LIKE '%idem%')}),
	'0', 'and nothing is left');

is($s->do(q{EXECUTE p('1')}), 'ERROR 42883', 'the session that lives on finds no function');
for my $time (1 .. 3)
{
	is($s->do('CREATE EXTENSION idempotency SCHEMA plain'), '', 'created again');
	is($s->do(q{EXECUTE p('1'); EXECUTE p('1')}), "claimed\nin_progress", 'the same session uses the new one');
	is( $s->do(q{SELECT outcome FROM idem_execute('move', 'x', command => 'SELECT 1');
			SELECT outcome FROM idem_lookup('move', '1')}),
		"executed\nin_progress", 'in all its ways');
	sql('DROP EXTENSION idempotency');
}

# Two of the same name in different databases have nothing to do with each other.
is(sql(q{SELECT outcome FROM idem_lookup('s', 'done', 'me')}, 'restored_plain'),
	'replayed', 'the other database has its own');

$node->stop;
done_testing();
