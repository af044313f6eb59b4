# META.json is valid by the rules of the PGXN Meta Spec 1.0.0, speaks of files
# that are there, and agrees with the control file, the licence and debian/.
# Spoilt copies of it prove that the rules would notice.
use strict;
use warnings;

use FindBin;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = "$FindBin::RealBin/../..";

# --- The rules ---------------------------------------------------------------------

my @licenses = qw(agpl_3 apache_1_1 apache_2_0 artistic_1 artistic_2 bsd freebsd gfdl_1_2 gfdl_1_3
  gpl_1 gpl_2 gpl_3 lgpl_2_1 lgpl_3_0 mit mozilla_1_0 mozilla_1_1 openssl perl_5 postgresql
  qpl_1_0 ssleay sun zlib open_source restricted unrestricted unknown);
my $semver = qr/(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){2}(?:-[a-z][-.0-9a-z]*)?/i;

sub text { return !ref $_[0] && defined $_[0] && $_[0] =~ /\S/ }
sub term { return text($_[0]) && $_[0] =~ m{^[^\s/\\\x00-\x1f\x7f]{2,}$} }
sub version { return text($_[0]) && $_[0] =~ /^$semver$/ }
sub tag { return text($_[0]) && length $_[0] <= 255 && $_[0] !~ m{[/\\\x00-\x1f\x7f]} }
sub url { return text($_[0]) && $_[0] =~ m{^[a-z][-+.a-z0-9]*:\S+$} }
sub path { return text($_[0]) && $_[0] !~ m{^/|\\|(?:^|/)\.\.(?:/|$)} }
sub range { return text($_[0]) && $_[0] =~ /^(?:0|(?:[<>]=?|[!=]=)?\s*$semver(?:\s*,\s*(?:[<>]=?|[!=]=)?\s*$semver)*)$/ }
sub one_of { my ($what, @of) = @_; return text($what) && grep { $_ eq $what } @of }
sub map_of { my ($what, $of) = @_; return ref $what eq 'HASH' && %$what && !grep { !$of->($_) } values %$what }
sub list_of { my ($what, $of) = @_; return ref $what eq 'ARRAY' && @$what && !grep { !$of->($_) } @$what }
sub one_or_list { my ($what, $of) = @_; return $of->($what) || list_of($what, $of) }

# Keys that are the publisher's own begin with x_.
sub keys_among
{
	my ($what, @known) = @_;
	return !grep { my $key = $_; $key !~ /^x_/i && !grep { $_ eq $key } @known } keys %$what;
}

sub provided
{
	my ($what) = @_;
	return ref $what eq 'HASH' && keys_among($what, qw(file version abstract docfile))
	  && path($what->{file}) && version($what->{version})
	  && (!exists $what->{abstract} || text($what->{abstract}))
	  && (!exists $what->{docfile} || path($what->{docfile}));
}

sub prereqs
{
	my ($what) = @_;
	return ref $what eq 'HASH' && keys_among($what, qw(configure build test runtime develop))
	  && map_of($what, sub {
		my ($phase) = @_;
		return ref $phase eq 'HASH' && keys_among($phase, qw(requires recommends suggests conflicts))
		  && map_of($phase, sub { map_of($_[0], \&range) });
	});
}

sub resources
{
	my ($what) = @_;
	return ref $what eq 'HASH' && keys_among($what, qw(homepage bugtracker repository))
	  && (!exists $what->{homepage} || url($what->{homepage}))
	  && (!exists $what->{bugtracker} || (keys_among($what->{bugtracker}, qw(web mailto)) && %{ $what->{bugtracker} }))
	  && (!exists $what->{repository} || keys_among($what->{repository}, qw(url web type)));
}

my %rule = (
	name => \&term,
	version => \&version,
	abstract => \&text,
	maintainer => sub { one_or_list($_[0], sub { text($_[0]) && $_[0] =~ /^[^<>]+ <[^@\s]+@[^@\s]+>$/ }) },
	license => sub { one_or_list($_[0], sub { one_of($_[0], @licenses) }) || map_of($_[0], \&url) },
	provides => sub { map_of($_[0], \&provided) && !grep { !term($_) } keys %{ $_[0] } },
	'meta-spec' => sub {
		ref $_[0] eq 'HASH' && keys_among($_[0], qw(version url)) && one_of($_[0]{version}, '1.0.0')
		  && (!exists $_[0]{url} || $_[0]{url} =~ m{^https?://pgxn\.org/meta/spec\.txt$});
	},
	description => \&text,
	generated_by => \&text,
	no_index => sub { map_of($_[0], sub { list_of($_[0], \&path) }) && keys_among($_[0], qw(file directory)) },
	prereqs => \&prereqs,
	release_status => sub { one_of($_[0], qw(stable testing unstable)) },
	resources => \&resources,
	tags => sub { list_of($_[0], \&tag) },
);
my @required = qw(name version abstract maintainer license provides meta-spec);

# What is wrong, by the names of the fields.
sub faults
{
	my ($meta) = @_;
	my %wrong = map { $_ => 1 } grep { !exists $meta->{$_} } @required;

	for my $field (grep { !/^x_/i } keys %$meta)
	{
		$wrong{$field} = 1 unless $rule{$field} && $rule{$field}->($meta->{$field});
	}
	return join ' ', sort keys %wrong;
}

# --- Ours ------------------------------------------------------------------------------

my $json = slurp_file("$source/META.json");
my $meta = decode_json($json);
is(faults($meta), '', 'META.json is valid');

my $control = slurp_file("$source/idempotency.control");
my ($default) = $control =~ /^default_version\s*=\s*'([^']+)'/m;
my $semantic = $default =~ /^\d+\.\d+$/ ? "$default.0" : $default;
my $provides = $meta->{provides};
is(join(' ', keys %$provides), 'idempotency', 'it provides the extension');
is($provides->{idempotency}{version}, $semantic, 'in the version of the control file');
is($provides->{idempotency}{file}, "idempotency--$default.sql", 'by the script of that version');
for my $file (map { @{$_}{qw(file docfile)} } values %$provides)
{
	ok(-s "$source/$file", "$file is there");
}
is($meta->{version} =~ s/\.\d+$//r, $default =~ s/^(\d+\.\d+).*/$1/r, 'the release belongs to that version');
is($meta->{license}, 'postgresql', 'the licence is named ...');
like(slurp_file("$source/LICENSE"), qr/^Permission to use, copy, modify, and distribute this software and its\b/m, '... and is there');
like(slurp_file("$source/CHANGELOG.md"), qr/^## \Q$default\E\b/m, 'the changelog tells of it');

my $maintainer = $meta->{maintainer};
my $debian = slurp_file("$source/debian/changelog");
like($debian, qr/\Aidempotency \(\Q$meta->{version}\E-\d+\) /, 'debian/changelog begins with the release');
like(slurp_file("$source/debian/control.in"), qr/^Maintainer: \Q$maintainer\E$/m, 'debian/control.in names the same maintainer');
my ($oldest) = slurp_file("$source/debian/pgversions") =~ /^(\d+)\+$/m;
is($meta->{prereqs}{runtime}{requires}{PostgreSQL}, "$oldest.0.0", 'and the same oldest PostgreSQL');

# --- That a fault would be noticed ---------------------------------------------------------

my %spoil = (
	(map { my $field = $_; ("no $field" => [ $field, sub { delete $_[0]{$field} } ]) } @required),
	'a version of two numbers' => [ version => sub { $_[0]{version} = '1.0' } ],
	'a version with a leading zero' => [ version => sub { $_[0]{version} = '1.0.01' } ],
	'a name with a space' => [ name => sub { $_[0]{name} = 'idem potency' } ],
	'an empty abstract' => [ abstract => sub { $_[0]{abstract} = '' } ],
	'no maintainer in the list' => [ maintainer => sub { $_[0]{maintainer} = [] } ],
	'a maintainer who cannot be reached' => [ maintainer => sub { $_[0]{maintainer} = 'somebody' } ],
	'an unknown licence' => [ license => sub { $_[0]{license} = 'PostgreSQL' } ],
	'nothing provided' => [ provides => sub { $_[0]{provides} = {} } ],
	'an extension without a file' => [ provides => sub { delete $_[0]{provides}{idempotency}{file} } ],
	'an extension without a version' => [ provides => sub { delete $_[0]{provides}{idempotency}{version} } ],
	'a file outside' => [ provides => sub { $_[0]{provides}{idempotency}{file} = '../x.sql' } ],
	'another specification' => [ 'meta-spec' => sub { $_[0]{'meta-spec'}{version} = '2.0.0' } ],
	'an unknown field' => [ requires => sub { $_[0]{requires} = {} } ],
	'an unknown phase' => [ prereqs => sub { $_[0]{prereqs}{run} = { requires => { plpgsql => 0 } } } ],
	'a prerequisite in no version' => [ prereqs => sub { $_[0]{prereqs}{runtime}{requires}{PostgreSQL} = '14' } ],
	'an unknown status' => [ release_status => sub { $_[0]{release_status} = 'released' } ],
	'tags that are none' => [ tags => sub { $_[0]{tags} = 'tag' } ],
	'a tag with a slash' => [ tags => sub { $_[0]{tags}[0] = 'a/b' } ],
);
for my $what (sort keys %spoil)
{
	my ($field, $change) = @{ $spoil{$what} };
	my $copy = decode_json($json);
	$change->($copy);
	is(faults($copy), $field, "noticed: $what");
}

done_testing();
