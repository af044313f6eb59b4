# shellcheck shell=bash
#
# The test suites: which there are, what each runs, and what came of it.
#
#   suites            their names, in the order in which they run
#   long_suites       those that run only if named, or in a long run
#   is_suite NAME
#   check_wanted_tests
#       Stop if one of wanted_tests is no test of wanted_suites.
#   suite_packages VERSION SHAREDIR
#       Print the WHAT=PACKAGE pairs that wanted_suites need (see apt.sh).
#   run_suites        run wanted_suites, or of them wanted_tests
#   add_failure       count one more, for what is no test
#   report            print the sums; status 1 unless all is well
#
# To add a suite: its name in one of the two, and a file suite/NAME.sh that sets
#
#   suite_files[NAME]      its tests, as patterns
#   suite_counter[NAME]    how its output is counted (tap.sh); count_prove if unset
#   suite_NAME FILE...     prints what the test program prints, and returns its
#                          status
#   packages_NAME VERSION SHAREDIR
#                          prints the WHAT=PACKAGE pairs it needs (apt.sh), if any
#   failures_NAME          shows what a failed test left to read, if anything
#
# A suite fails if one of its tests is seen to fail, and also if its program
# ends with an error without such a test: that counts as one failure.  Output
# is shown as it comes and kept in work_dir/NAME.log, which is where the tests
# are counted.

suites=(compile model regress isolation permute fault ubsan pgtap tap life stress fuzz chaos
	docs examples clients monitor package)
long_suites=(valgrind)

declare -A suite_files=() suite_counter=()

for suite in "${suites[@]}" "${long_suites[@]}"; do
	# shellcheck source=/dev/null
	. "$repository/script/lib/suite/$suite.sh"
done

# Show what is skipped, what fails, and what a test says about it.
prove_flags=(--directives --failures --comments)

declare -A suite_sums=()
total_passed=0 total_failed=0 total_skipped=0

is_suite()
{
	[[ -n $1 && -v suite_files[$1] ]]
}

# Paths of the tests of a suite, relative to the repository.
files_of()
{
	local pattern patterns file

	read -rd '' -a patterns <<<"${suite_files[$1]}" || true
	for pattern in "${patterns[@]}"; do
		for file in "$repository"/$pattern; do
			if [[ -f $file ]]; then
				printf '%s\n' "${file#"$repository"/}"
			fi
		done
	done
}

# Does a TEST argument mean this file?
means()
{
	local base=${2##*/}

	[[ ${1#./} == "$2" || $1 == "$base" || $1 == "${base%.*}" ]]
}

wanted_files_of()
{
	local file test

	while IFS= read -r file; do
		if ((${#wanted_tests[@]} == 0)); then
			printf '%s\n' "$file"
		fi
		for test in "${wanted_tests[@]}"; do
			if means "$test" "$file"; then
				printf '%s\n' "$file"
				break
			fi
		done
	done < <(files_of "$1")
}

check_wanted_tests()
{
	local test suite file

	for test in "${wanted_tests[@]}"; do
		for suite in "${wanted_suites[@]}"; do
			while IFS= read -r file; do
				if means "$test" "$file"; then
					continue 3
				fi
			done < <(files_of "$suite")
		done
		die "there is no test $test in ${wanted_suites[*]}"
	done
}

suite_packages()
{
	local suite

	for suite in "${wanted_suites[@]}"; do
		if defined "packages_$suite"; then
			"packages_$suite" "$@"
		fi
	done
}

defined()
{
	declare -F "$1" >/dev/null
}

run_suites()
{
	local suite files

	for suite in "${wanted_suites[@]}"; do
		mapfile -t files < <(wanted_files_of "$suite")
		if ((${#files[@]} > 0)); then
			run_suite "$suite" "${files[@]}"
		fi
	done
}

run_suite()
{
	local suite=$1 log=$work_dir/$1.log status=0 passed failed skipped
	shift

	step "suite $suite on PostgreSQL $version"
	run_job logged "$log" "suite_$suite" "$@" || status=$?
	read -r passed failed skipped < <("${suite_counter[$suite]:-count_prove}" "$log")
	if ((status != 0 && failed == 0)); then
		failed=1
	fi
	suite_sums[$suite]="$passed passed, $failed failed, $skipped skipped"
	total_passed=$((total_passed + passed))
	total_failed=$((total_failed + failed))
	total_skipped=$((total_skipped + skipped))
	if ((failed > 0)); then
		show_failures "$suite"
	fi
}

add_failure()
{
	total_failed=$((total_failed + 1))
}

logged()
{
	"${@:2}" 2>&1 | tee "$1"
}

report()
{
	local suite

	step "done"
	for suite in "${wanted_suites[@]}"; do
		printf '%-10s %s\n' "$suite" "${suite_sums[$suite]:-has no such test}"
	done
	printf '%d passed, %d failed' "$total_passed" "$total_failed"
	if ((total_skipped > 0)); then
		printf ', %d skipped' "$total_skipped"
	fi
	printf '\n'
	((total_passed > 0 && total_failed == 0))
}

# One after the other, whatever becomes of each.
prove_programs()
{
	local file status=0

	for file in "$@"; do
		prove_program "$file" || status=1
	done
	return "$status"
}

# An executable that prints TAP, in a database of its own.
prove_program()
{
	local name

	name=$(basename "$1" .py)
	fresh_database "$name" &&
		as_server_user env PGDATABASE="$name" prove "${prove_flags[@]}" --exec '' "$1"
}

installcheck()
{
	as_server_user make --silent installcheck PG_CONFIG="$private_config" \
		REGRESS= ISOLATION= TAP_TESTS= "$@"
}

# For a suite that wants another build of the extension: a private server of
# its own, whose pg_config is private_config then, and the sources that it was
# built from, which become the working directory.  It is not started yet.
separate_server()
{
	local src=$work_dir/$1-src pg=$work_dir/$1-pg

	copy_source "$repository" "$src"
	build_extension "$src" "$2" "${@:3}" || return
	private_config=$(private_server "$pg" "$2")
	install_extension "$src" "$pg" "$2" || return
	cd "$src" || return
}

failures_separate()
{
	excerpt "$work_dir/$1-src/regression.diffs"
	excerpt "$work_dir/$1-src/output_iso/regression.diffs"
}

# The tests of pg_regress and pg_isolation_regress among the files.
check_files()
{
	local file scripts=() specs=() status=0

	for file in "$@"; do
		case $file in
			*.sql) scripts+=("$file") ;;
			*.spec) specs+=("$file") ;;
		esac
	done
	if ((${#scripts[@]} > 0)); then
		installcheck REGRESS="$(names_of "${scripts[@]}")" || status=$?
	fi
	if ((${#specs[@]} > 0)); then
		installcheck ISOLATION="$(names_of "${specs[@]}")" \
			ISOLATION_OPTS="--inputdir=$(dirname "$(dirname "${specs[0]}")") --load-extension=idempotency" ||
			status=$?
	fi
	return "$status"
}

names_of()
{
	local file

	for file in "$@"; do
		file=${file##*/}
		printf '%s ' "${file%.*}"
	done
}

fresh_database()
{
	local name=$1 extension
	shift

	as_server_user createdb "$name" || return
	for extension in idempotency "$@"; do
		as_server_user psql --no-psqlrc --quiet --dbname="$name" \
			--command="CREATE EXTENSION $extension" || return
	done
}

show_failures()
{
	if defined "failures_$1"; then
		"failures_$1"
	fi
	if grep -Eq 'PANIC|TRAP|terminated by signal' "$PGHOST/server.log"; then
		excerpt "$PGHOST/server.log"
	fi
}

# The end of a log, enough to see what is wrong.
excerpt()
{
	if [[ -s $1 ]]; then
		echo "--- the last 200 lines of ${1#"$work_dir"/}"
		tail -n 200 "$1"
		echo "---"
	fi
}
