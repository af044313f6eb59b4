# shellcheck shell=bash disable=SC2034,SC2154
#
# Crowds of sessions, after which an invariant must hold.

suite_files[stress]='test/stress/*.py'

packages_stress()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg
}

# One after the other: each wants the machine for itself.
suite_stress()
{
	prove_programs "$@"
}
