# shellcheck shell=bash disable=SC2034,SC2154
#
# Does it compile without a warning, by both compilers?

suite_files[compile]='idempotency.c'
suite_counter[compile]=count_regress

packages_compile()
{
	[[ -n $(find_clang) ]] || echo clang=clang
}

# Without a warning, by both compilers, at the highest warning level that the
# Makefile knows.  PostgreSQL's flags are made for the compiler it was built
# with, so clang is told not to mind those that are strange to it.
suite_compile()
{
	local compiler flags number=0 status=0 dir=$work_dir/compile

	for compiler in gcc "$(find_clang)"; do
		number=$((number + 1))
		flags=-Werror
		if [[ $compiler == *clang* ]]; then
			flags+=' -Wno-unknown-warning-option -Wno-ignored-attributes'
			flags+=' -Wno-ignored-optimization-argument'
		fi
		rm -rf "$dir"
		copy_source "$repository" "$dir"
		if build_extension "$dir" "$pg_config" CC="$compiler" COPT="$flags" \
			with_llvm=no; then
			echo "ok $number - ${compiler##*/}"
		else
			echo "not ok $number - ${compiler##*/}"
			status=1
		fi
	done
	return "$status"
}

# The clang that the server's packages bring, to make bitcode with, is as good
# as one on the PATH.
find_clang()
{
	local pgxs

	if command -v clang; then
		return
	fi
	if [[ -n $pg_config ]]; then
		pgxs=$("$pg_config" --pgxs)
		sed -n 's/^CLANG = //p' "${pgxs%/makefiles/*}/Makefile.global"
	fi
}
