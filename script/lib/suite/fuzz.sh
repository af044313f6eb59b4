# shellcheck shell=bash disable=SC2034,SC2154
#
# Random input: to the pure parts by libFuzzer, to the functions by SQL.

suite_files[fuzz]='test/fuzz/*.py'

packages_fuzz()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg clang=clang sqlsmith=sqlsmith
	clang_runtime
}

# The libraries that go with the release's clang: a package of its version.
# Where they are differs between releases; where every package has its licence
# does not.
clang_runtime()
{
	local number

	number=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')
	if [[ -n $number ]]; then
		number=libclang-rt-$number-dev
		echo "/usr/share/doc/$number/copyright=$number"
	fi
}

# What is compiled here is compiled against the headers of the installation,
# which the private copy does not have.
suite_fuzz()
{
	export FUZZ_PG_CONFIG=$pg_config
	prove_programs "$@"
}
