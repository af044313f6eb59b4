# shellcheck shell=bash disable=SC2034,SC2154
#
# Three sessions on one key, in every order of their steps, held against what
# the protocol allows.

suite_files[permute]='test/permute/permute.py'

packages_permute()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg
}

suite_permute()
{
	prove_programs "$@"
}
