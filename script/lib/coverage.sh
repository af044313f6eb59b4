# shellcheck shell=bash disable=SC2034,SC2154
#
# How much of the C code do the tests run?
#
#   coverage_prepare
#       Have everything built so that it counts what it runs.
#
#   coverage_report
#       After the suites: print lines and branches of each file, leave the
#       HTML pages in coverage/, and fail below the limits.
#
# Counted is the code as it is shipped.  The fault suite runs it too, built
# with points at which it can be made to fail; what that build runs of the
# same lines counts, the points do not.  A process adds up its counts as it
# exits: a backend that is killed, or stopped with its server at once, adds
# nothing.
#
# PostgreSQL's macros branch inside: whether an error is to be shown, an
# interrupt is pending, a datum has a short header or is compressed, a list is
# empty.  Those are not decisions of this code, so branches on a line with one
# of them are not counted.  The line itself is: that of an error is covered if
# the error was raised.

least_lines=95 least_branches=90
uncounted_branches='(ereport|elog|Assert|CHECK_FOR_INTERRUPTS|PG_TRY|PG_FINALLY|PG_END_TRY'
uncounted_branches+='|PG_RETURN_\w+|PG_GETARG_\w+|DatumGet\w+|SRF_\w+|VARSIZE_ANY_EXHDR|VARDATA_ANY'
uncounted_branches+='|foreach|dlist_foreach|dlist_reverse_foreach|FAULT_POINT|FAULT_INIT) *\('

coverage_prepare()
{
	build_arguments=(COPT='--coverage -O0' with_llvm=no)
	need_packages lcov=lcov
}

coverage_report()
{
	local all=$work_dir/coverage.info status=0

	step "coverage"
	coverage_collect "$all" "$source_dir" "$work_dir/fault-src"
	coverage_table <"$all" || status=1
	genhtml --quiet --branch-coverage --legend --title "idempotency $version" \
		--prefix "$source_dir" --output-directory "$repository/coverage" "$all" >/dev/null
	echo "see coverage/index.html"
	return "$status"
}

# Both builds, as if they were one.
coverage_collect()
{
	local all=$1 build
	shift

	: >"$all.raw"
	for build in "$@"; do
		[[ -d $build ]] || continue
		coverage_lcov --capture --directory "$build" --output-file "$all.one"
		sed "s,^SF:$build/,SF:$source_dir/," "$all.one" >>"$all.raw"
	done
	coverage_lcov --extract "$all.raw" "$source_dir/idempotency.c" "$source_dir/src/*.c" \
		--output-file "$all.extracted"
	coverage_lcov --remove "$all.extracted" '*/src/fault.c' --output-file "$all"
}

# It has much to say about itself.
coverage_lcov()
{
	lcov --quiet --rc lcov_branch_coverage=1 --rc "lcov_excl_br_line=$uncounted_branches" "$@" \
		2>>"$work_dir/lcov.log" || excerpt "$work_dir/lcov.log"
}

coverage_table()
{
	awk -F '[:,]' -v lines="$least_lines" -v branches="$least_branches" '
		function row(name, lh, lf, bh, bf) {
			printf "%-20s %5d of %5d lines %6.2f %%  %5d of %5d branches %6.2f %%\n",
				name, lh, lf, lf ? 100 * lh / lf : 100, bh, bf, bf ? 100 * bh / bf : 100
		}
		/^SF:/ { name = $2; sub(".*/", "", name) }
		/^LF:/ { lf = $2 } /^LH:/ { lh = $2 }
		/^BRF:/ { bf = $2 } /^BRH:/ { bh = $2 }
		/^end_of_record/ {
			row(name, lh, lf, bh, bf)
			LF += lf; LH += lh; BF += bf; BH += bh
			lf = lh = bf = bh = 0
		}
		END {
			row("total", LH, LF, BH, BF)
			if (!LF || 100 * LH < lines * LF || 100 * BH < branches * BF) {
				printf "wanted: %d %% of the lines and %d %% of the branches\n", lines, branches
				exit 1
			}
		}'
}
