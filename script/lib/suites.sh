# shellcheck shell=bash
#
# The test suites: which there are, what each runs, and what came of it.
#
#   suites            their names, in the order in which they run
#   is_suite NAME
#   check_wanted_tests
#       Stop if one of wanted_tests is no test of wanted_suites.
#   suite_packages VERSION SHAREDIR
#       Print the WHAT=PACKAGE pairs that wanted_suites need (see apt.sh).
#   run_suites        run wanted_suites, or of them wanted_tests
#   report            print the sums; status 1 unless all is well
#
# To add a suite: a name in "suites", its files in suite_files, what it needs
# in suite_packages, and a function suite_NAME that gets the files, prints what
# the test program prints, and returns its status.
#
# A suite fails if one of its tests is seen to fail, and also if its program
# ends with an error without such a test: that counts as one failure.  Output
# is shown as it comes and kept in work_dir/NAME.log, which is where the tests
# are counted.

suites=(compile regress isolation fault pgtap tap stress docs examples)

declare -A suite_files=(
	[compile]='idempotency.c'
	[regress]='sql/*.sql'
	[isolation]='test/isolation/specs/*.spec'
	[fault]='test/fault/specs/*.spec'
	[pgtap]='test/pgtap/*.sql'
	[tap]='test/t/*.pl'
	[stress]='test/stress/*.py'
	[docs]='test/docs/check.py'
	[examples]='examples/*/run.py'
)

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
	local file

	for file in "$repository"/${suite_files[$1]}; do
		if [[ -f $file ]]; then
			printf '%s\n' "${file#"$repository"/}"
		fi
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
		case $suite in
			compile) [[ -n $(find_clang) ]] || echo clang=clang ;;
			pgtap)
				printf '%s\n' prove=perl \
					perl:TAP::Parser::SourceHandler::pgTAP=libtap-parser-sourcehandler-pgtap-perl
				addon_package "$1" "$2" pgtap
				;;
			tap)
				printf '%s\n' prove=perl perl:IPC::Run=libipc-run-perl \
					python:psycopg=python3-psycopg pgbouncer=pgbouncer \
					locale:en_US.utf8=locales-all locale:tr_TR.utf8=locales-all
				addon_package "$1" "$2" cron
				;;
			stress | examples) printf '%s\n' prove=perl python:psycopg=python3-psycopg ;;
			docs)
				printf '%s\n' prove=perl python:psycopg=python3-psycopg \
					python:psycopg2=python3-psycopg2 python:django=python3-django \
					ruby:pg=ruby-pg ruby:active_record=ruby-activerecord \
					javac=default-jdk-headless \
					/usr/share/java/postgresql.jar=libpostgresql-jdbc-java \
					/usr/share/java/spring3-aop.jar=libspring-aop-java \
					/usr/share/java/spring3-jdbc.jar=libspring-jdbc-java
				foreign_node || echo node:pg=node-pg
				;;
		esac
	done
}

# Where the package nodejs is NodeSource's, Debian's node-pg cannot be installed
# beside it.  There the example for Node wants "npm install --global pg", and is
# skipped without.
foreign_node()
{
	[[ $(dpkg-query --show --showformat='${Version}' nodejs 2>/dev/null) == *nodesource* ]]
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
	read -r passed failed skipped < <("$(counter_of "$suite")" "$log")
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

logged()
{
	"${@:2}" 2>&1 | tee "$1"
}

counter_of()
{
	case $1 in
		compile | regress | isolation | fault) echo count_regress ;;
		*) echo count_prove ;;
	esac
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

suite_regress()
{
	installcheck REGRESS="$(names_of "$@")"
}

suite_isolation()
{
	installcheck ISOLATION="$(names_of "$@")"
}

# Isolation tests again, of a build in which a session can be made to fail or
# to stop at given points (src/fault.c); so with a server of its own.
suite_fault()
{
	local src=$work_dir/fault-src pg=$work_dir/fault-pg private_config

	copy_source "$repository" "$src"
	build_extension "$src" "$pg_config" PG_CPPFLAGS=-DIDEM_FAULT_POINTS || return
	private_config=$(private_server "$pg" "$pg_config")
	install_extension "$src" "$pg" "$pg_config" || return
	cluster_start "${private_config%/*}" "$work_dir/fault-cluster"
	cd "$src" || return
	installcheck ISOLATION="$(names_of "$@")" \
		ISOLATION_OPTS="--inputdir=test/fault --load-extension=idempotency --dbname=fault"
}

suite_tap()
{
	installcheck TAP_TESTS=1 PROVE_TESTS="$*" PROVE_FLAGS="--jobs=2 --directives --failures"
}

suite_pgtap()
{
	fresh_database pgtap pgtap &&
		as_server_user pg_prove "${prove_flags[@]}" --dbname=pgtap "$@"
}

# One after the other: each wants the machine for itself.
suite_stress()
{
	local file status=0

	for file in "$@"; do
		prove_program "$file" || status=1
	done
	return "$status"
}

suite_docs()
{
	prove_program "$1"
}

# An example makes the database that it wants by itself.
suite_examples()
{
	local file status=0

	for file in "$@"; do
		as_server_user prove "${prove_flags[@]}" --exec '' "$file" :: --tap || status=1
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
	local test

	case $1 in
		compile) return ;;
		regress) excerpt regression.diffs ;;
		isolation) excerpt output_iso/regression.diffs ;;
		fault) excerpt "$work_dir/fault-src/output_iso/regression.diffs" ;;
		tap)
			while IFS= read -r test; do
				excerpt "tmp_check/log/regress_log_$test"
			done < <(sed -n 's,^test/t/\(.*\)\.pl *(Wstat: .*,\1,p' "$work_dir/tap.log")
			return
			;;
	esac
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
