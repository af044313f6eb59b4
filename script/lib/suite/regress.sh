# shellcheck shell=bash disable=SC2034,SC2154
#
# pg_regress: one file per behaviour.

suite_files[regress]='sql/*.sql'
suite_counter[regress]=count_regress

suite_regress()
{
	installcheck REGRESS="$(names_of "$@")"
}

failures_regress()
{
	excerpt regression.diffs
}
