# shellcheck shell=bash disable=SC2034,SC2154
#
# Random input: to the pure parts by libFuzzer, to the functions by SQL.

suite_files[fuzz]='test/fuzz/*.py'

packages_fuzz()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg clang=clang \
		/var/lib/dpkg/info/libclang-rt-dev.list=libclang-rt-dev
}

# What is compiled here is compiled against the headers of the installation,
# which the private copy does not have.
suite_fuzz()
{
	local file status=0

	export FUZZ_PG_CONFIG=$pg_config
	for file in "$@"; do
		prove_program "$file" || status=1
	done
	return "$status"
}
