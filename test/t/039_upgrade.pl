# A database that was upgraded to a version is the same as one where that
# version was installed afresh: same functions, columns, constraints, indexes,
# views, comments, privileges and dump configuration.  Holds for every upgrade
# path that is shipped.  A private copy of the installation, with made-up
# versions whose scripts are wrong in one way each, proves that the comparison
# would notice; and that sessions live on through an upgrade.
use strict;
use warnings;

use File::Find qw(find);
use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = "$FindBin::RealBin/../..";

# Whatever makes up the extension in a database, one fact a line, by name: no
# OID is in it, nor the version that some minor releases of the server give to
# each column (pg_attver).
my $description = q{
	WITH member AS (
		SELECT d.classid, d.objid, i.type, i.identity
		FROM pg_extension e
			JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
				AND d.deptype = 'e',
			pg_identify_object(d.classid, d.objid, 0) i
		WHERE e.extname = 'idempotency'
	), relation AS (
		SELECT m.type, m.identity, c.*
		FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
		UNION ALL
		-- of a row type only the type is a member
		SELECT m.type, m.identity, c.*
		FROM member m JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
			JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
	)
	SELECT fact FROM (
		SELECT concat_ws(' ', type, identity, 'described as',
			quote_nullable(obj_description(objid, classid::regclass::name)))
		FROM member
		UNION ALL
		SELECT concat_ws(' ', 'function', m.identity, 'owner', p.proowner::regrole, 'privileges',
			coalesce(p.proacl, acldefault('f', p.proowner)), 'cost', p.procost, p.prorows,
			pg_get_functiondef(p.oid))
		FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
		UNION ALL
		SELECT concat_ws(' ', 'relation', r.identity, 'owner', relowner::regrole, 'privileges',
			coalesce(relacl, acldefault('r', relowner)), relkind, relpersistence, relrowsecurity,
			relforcerowsecurity, relreplident, relnatts, am.amname, reloptions,
			CASE relkind WHEN 'v' THEN pg_get_viewdef(r.oid) END)
		FROM relation r LEFT JOIN pg_am am ON am.oid = r.relam
		UNION ALL
		SELECT concat_ws(' ', 'column', r.identity, a.attnum, a.attname, a.attisdropped,
			format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull,
			a.attstorage, a.attcompression, a.attidentity, a.attgenerated, a.attacl,
			(SELECT array_agg(o) FROM unnest(a.attoptions) o WHERE o !~ '^pg_attver='),
			pg_get_expr(d.adbin, d.adrelid), 'described as',
			quote_nullable(col_description(r.oid, a.attnum)))
		FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
			LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
		UNION ALL
		SELECT concat_ws(' ', 'constraint', r.identity, c.conname, c.convalidated,
			pg_get_constraintdef(c.oid), 'described as',
			quote_nullable(obj_description(c.oid, 'pg_constraint')))
		FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
		UNION ALL
		SELECT concat_ws(' ', 'index', r.identity, pg_get_indexdef(i.indexrelid), i.indisvalid,
			i.indisclustered, i.indisreplident, c.reloptions, 'described as',
			quote_nullable(obj_description(i.indexrelid, 'pg_class')))
		FROM relation r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class c ON c.oid = i.indexrelid
		UNION ALL
		SELECT concat_ws(' ', 'trigger', r.identity, t.tgenabled, pg_get_triggerdef(t.oid), 'described as',
			quote_nullable(obj_description(t.oid, 'pg_trigger')))
		FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid
		UNION ALL
		SELECT concat_ws(' ', 'rule', r.identity, pg_get_ruledef(w.oid))
		FROM relation r JOIN pg_rewrite w ON w.ev_class = r.oid
		UNION ALL
		SELECT concat_ws(' ', 'dumped', t.oid::regclass, quote_nullable(t.condition))
		FROM pg_extension e, unnest(e.extconfig, e.extcondition) t (oid, condition)
		WHERE e.extname = 'idempotency'
		UNION ALL
		SELECT concat_ws(' ', 'extension in', extnamespace::regnamespace, extrelocatable)
		FROM pg_extension WHERE extname = 'idempotency'
	) facts (fact)
	ORDER BY fact COLLATE "C"};

# In a database of its own: create the extension at one version, then take it
# to another.
sub described
{
	my ($node, @versions) = @_;
	my $first = shift @versions;

	$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS scratch');
	$node->safe_psql('postgres', 'CREATE DATABASE scratch');
	$node->safe_psql('scratch', join ';', "CREATE EXTENSION idempotency VERSION '$first'",
		map { "ALTER EXTENSION idempotency UPDATE TO '$_'" } @versions);
	return $node->safe_psql('scratch', $description);
}

sub works
{
	my ($node) = @_;
	return $node->safe_psql('scratch', q{
		BEGIN;
		SELECT outcome FROM idem_claim('s', 'k');
		SELECT idem_finish('s', 'k', response_body => 'ok');
		COMMIT;
		SELECT outcome, response_body FROM idem_claim('s', 'k')}) eq "claimed\nt\nreplayed|ok";
}

# --- What is shipped ----------------------------------------------------------------

my $node = PostgreSQL::Test::Cluster->new('upgrade');
$node->init;
$node->start;

my $control = slurp_file("$source/idempotency.control");
my ($default) = $control =~ /^default_version\s*=\s*'([^']+)'/m;
is( $node->safe_psql('postgres',
		q{SELECT default_version FROM pg_available_extensions WHERE name = 'idempotency'}),
	$default, 'the version that is installed is the one of the control file');

my @elsewhere;
find( { no_chdir => 1, wanted => sub {
	return unless -f && m{/(?:Makefile|[^/]+\.[ch])$};
	push @elsewhere, $_ if slurp_file($_) =~ /(?<![\w.])\Q$default\E(?![\w.])/;
} }, "$source/Makefile", "$source/idempotency.c", "$source/src");
is("@elsewhere", '', 'no file of the code repeats it');

my $sharedir = qx{pg_config --sharedir};
chomp $sharedir;
for my $script (glob "$source/idempotency--*.sql")
{
	my ($name) = $script =~ m{([^/]+)$};
	is(slurp_file("$sharedir/extension/$name"), slurp_file($script), "$name is installed");
}

my $now = described($node, $default);
ok(works($node), "$default, installed afresh, works");
cmp_ok(scalar(split /\n/, $now), '>', 100, 'there is something to compare');
is(described($node, $default), $now, 'two fresh ones are the same');

my @paths = split /\n/, $node->safe_psql('postgres', qq{
	SELECT source FROM pg_extension_update_paths('idempotency')
	WHERE target = '$default' AND path IS NOT NULL AND source ~ '^1\\.'
	ORDER BY source});
for my $from (@paths)
{
	is(described($node, $from, $default), $now, "upgraded from $from is as if installed afresh");
	ok(works($node), "and works");
}
ok((grep { $_ eq '1.0' } @paths, $default), 'there is a way from 1.0');
$node->stop;

# --- That a difference would be noticed ------------------------------------------------

my $root = PostgreSQL::Test::Utils::tempdir();

my $prefix = mirror_server($root);
my $extension = "$root$sharedir/extension";
my $base = slurp_file("$sharedir/extension/idempotency--1.0.sql");

# Two ways to each made-up version: fresh, and from 1.0.
sub ship
{
	my ($version, $change, $upgrade) = @_;
	append_to_file("$extension/idempotency--$version.sql", "$base\n$change\n");
	append_to_file("$extension/idempotency--1.0--$version.sql", "$upgrade\n");
	return;
}

my $good = q{
	ALTER TABLE idem_record ADD note text;
	COMMENT ON COLUMN idem_record.note IS 'of the user''s';
	CREATE FUNCTION idem_more() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
	REVOKE ALL ON FUNCTION idem_more FROM PUBLIC;};
# What only one of the two ways does.
my %difference = (
	'a comment on a function' => q{COMMENT ON FUNCTION idem_claim IS 'claim';},
	'a comment on a column' => q{COMMENT ON COLUMN idem_record.token IS 'token';},
	'a comment on a constraint' => q{COMMENT ON CONSTRAINT idem_record_pkey ON idem_record IS NULL;},
	'a comment on an index' => q{COMMENT ON INDEX idem_record_sweep_idx IS NULL;},
	'a column' => 'ALTER TABLE idem_record ADD note text;',
	'a column that was dropped' => 'ALTER TABLE idem_record ADD note text; ALTER TABLE idem_record DROP note;',
	'a type' => 'ALTER TABLE idem_record ALTER response_code TYPE bigint;',
	'not null' => 'ALTER TABLE idem_record ALTER checkpoint SET NOT NULL;',
	'a default' => 'ALTER TABLE idem_record ALTER checkpoint SET DEFAULT 0;',
	'storage' => 'ALTER TABLE idem_record ALTER response_body SET STORAGE EXTERNAL;',
	'a constraint' => 'ALTER TABLE idem_record ADD CHECK (attempt < 10);',
	'an index' => 'CREATE INDEX ON idem_record (created_at);',
	'a predicate' => 'DROP INDEX idem_record_lease_idx; CREATE INDEX idem_record_lease_idx
		ON idem_record (lease_expires_at) WHERE state = $$unknown$$;',
	'fillfactor' => 'ALTER TABLE idem_record SET (fillfactor = 50);',
	'a view' => q{CREATE OR REPLACE VIEW idem_unresolved AS
		SELECT r.scope, r.key, r.principal, r.state, r.attempt, r.on_abandon, r.claimed_at,
			r.lease_expires_at, r.checkpoint, r.checkpoint_data FROM idem_record r;},
	'the body of a function' => q{CREATE OR REPLACE FUNCTION idem_privilege_set(privilege text)
		RETURNS SETOF text LANGUAGE plpgsql STABLE PARALLEL SAFE
		SET search_path = pg_catalog, pg_temp AS 'BEGIN END';},
	'volatility' => 'ALTER FUNCTION idem_lookup STABLE;',
	'strictness' => 'ALTER FUNCTION idem_lookup STRICT;',
	'a default argument' => q{CREATE OR REPLACE FUNCTION idem_sweep(max_rows integer DEFAULT 500,
		OUT deleted bigint, OUT unresolved bigint, OUT more boolean)
		AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;},
	'the symbol of a function' => q{CREATE OR REPLACE FUNCTION idem_forget(scope text, key text,
		principal text DEFAULT '') RETURNS boolean AS 'MODULE_PATHNAME', 'idem_finish'
		LANGUAGE C VOLATILE PARALLEL UNSAFE;},
	'a privilege on a function' => 'GRANT EXECUTE ON FUNCTION idem_sweep TO PUBLIC;',
	'a privilege on the table' => 'GRANT SELECT ON idem_record TO PUBLIC;',
	'a privilege on a column' => 'GRANT SELECT (key) ON idem_record TO PUBLIC;',
	'a function too many' => q{CREATE FUNCTION idem_more() RETURNS int LANGUAGE sql AS 'SELECT 1';},
	'a function that is left out' => 'DROP FUNCTION idem_forget;',
	'a column of a row type' => 'ALTER TYPE idem_claim_row ADD ATTRIBUTE note text;',
	'the type of a column of a row type' => 'ALTER TYPE idem_lookup_row ALTER ATTRIBUTE response_code TYPE bigint;',
	'a comment on a column of a row type' => q{COMMENT ON COLUMN idem_claim_row.token IS 'token';},
	'a trigger' => 'DROP TRIGGER idem_policy_truncated ON idem_policy;',
	'when a trigger fires' => 'ALTER TABLE idem_policy ENABLE TRIGGER idem_policy_changed;',
	'a type too many' => 'CREATE TYPE idem_more AS ENUM ();',
	'row security' => 'ALTER TABLE idem_record ENABLE ROW LEVEL SECURITY;',
	'a condition of the dump' => q{SELECT pg_catalog.pg_extension_config_dump('idem_record', 'WHERE true');},
	'membership' => 'ALTER EXTENSION idempotency DROP VIEW idem_health;',
);
my %version;
my $number = 0;
for my $what (sort keys %difference)
{
	$version{$what} = 'wrong' . ++$number;
	ship($version{$what}, '', $difference{$what});
}
ship('right', $good, $good);

my $private = PostgreSQL::Test::Cluster->new('private', install_path => $prefix);
$private->init;
$private->append_conf('postgresql.conf', "fsync = off\n");
$private->start;

my $one = described($private, '1.0');
is(described($private, '1.0', 'right'), described($private, 'right'), 'a right upgrade is right');
isnt(described($private, 'right'), $one, 'and has changed something');
for my $what (sort keys %difference)
{
	isnt(described($private, '1.0', $version{$what}), $one, "noticed: $what");
}

# --- Sessions that live on through an upgrade -----------------------------------------

# Library and SQL may be of different versions for a while, in either order.
$private->safe_psql('postgres', q{CREATE DATABASE live});
$private->safe_psql('live', q{CREATE EXTENSION idempotency VERSION '1.0'});
my $s = session($private, dbname => 'live');
$s->do(q{PREPARE claim AS SELECT outcome FROM idem_claim('s', $1, lease => '1 h')});
$s->do(q{PREPARE run AS SELECT outcome, response_body FROM idem_execute('s', $1, command => 'SELECT 7')});
is($s->do(q{EXECUTE claim('a'); EXECUTE run('x')}), "claimed\nexecuted|7", 'a session at work');
my $token = $private->safe_psql('live', q{SELECT token FROM idem_record WHERE key = 'a'});
$s->do(q{BEGIN; SELECT idem_claim('s', 'open')});
my $upgrade = session($private, dbname => 'live');
$upgrade->send(q{ALTER EXTENSION idempotency UPDATE TO 'right'});
$private->poll_query_until('live', q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = } . $upgrade->pid)
  or die 'the upgrade does not wait';
is($s->do(q{SELECT idem_finish('s', 'open'); COMMIT}), 't', 'an upgrade waits for a transaction with a claim');
is($upgrade->result, '', 'and goes on after it');
is($s->do(q{EXECUTE claim('a'); EXECUTE claim('b'); EXECUTE run('x'); EXECUTE run('y')}),
	"in_progress\nclaimed\nreplayed|7\nexecuted|7", 'the session goes on, with its plans');
is( $s->do("SELECT idem_finish('s', 'a', token => '$token'); SELECT idem_more();
		SELECT count(*) FROM idem_record WHERE note IS NULL"),
	"t\n1\n5", 'a token from before is good, and what is new is there');
$upgrade->do(q{UPDATE idem_record SET note = 'mine' WHERE key = 'b'});
is($s->do(q{SELECT idem_finish('s', 'b', token => token) FROM idem_record WHERE key = 'b';
		SELECT note FROM idem_record WHERE key = 'b'}), "t\nmine", 'a new column is kept by an old library');

# SQL that wants a library of its own version, before that is there.
my $symbol = q{CREATE FUNCTION idem_newer() RETURNS int AS 'MODULE_PATHNAME' LANGUAGE C;};
ship('newer', $symbol, $symbol);
$private->safe_psql('postgres', q{CREATE DATABASE early});
$private->safe_psql('early', q{CREATE EXTENSION idempotency VERSION '1.0'});
$s = session($private, dbname => 'early');
is( $s->do(q{SELECT outcome FROM idem_claim('s', 'a', lease => '1 h');
		ALTER EXTENSION idempotency UPDATE TO 'newer';
		SELECT outcome FROM idem_claim('s', 'a');
		SELECT extversion FROM pg_extension WHERE extname = 'idempotency'}),
	"claimed\nin_progress\n1.0\nERROR 42883", 'an upgrade for which the library is too old changes nothing');
$s->quit;

$private->stop;
done_testing();
