# shellcheck shell=bash disable=SC2034,SC2154
#
# pg_isolation_regress: one race per file.

suite_files[isolation]='test/isolation/specs/*.spec'
suite_counter[isolation]=count_regress

suite_isolation()
{
	installcheck ISOLATION="$(names_of "$@")"
}

failures_isolation()
{
	excerpt output_iso/regression.diffs
}
