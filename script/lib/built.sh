# shellcheck shell=bash
#
# Servers built from Debian's source package, with what a packaged one leaves
# out: assertions, and the marks that let valgrind see into PostgreSQL's own
# memory management.
#
#   built_server VERSION
#       Print the pg_config of such a server of that major version, which this
#       system's release ships; build it first unless it was built before.
#       Beside its bin directory is valgrind.supp, PostgreSQL's own list of what
#       valgrind need not mention.
#
#   build_packages
#       Print the WHAT=PACKAGE pairs (apt.sh) that building one needs.
#
#   lend_addons DIR PG_CONFIG BUILT_CONFIG
#       Let a private copy of a built server under DIR (server.sh) have the
#       extensions that the packages of PG_CONFIG's server bring.
#
# A server is kept beside the roots (root.sh), under a name that changes with
# its version and with how it is built, and appears there only when complete.
# It may be deleted at any time when not in use.
#
# The source comes from where the system's packages come from, by the system's
# own sources of apt, with "deb" read as "deb-src".  That is done in a
# directory that is thrown away: the system's configuration stays as it is.

build_options=(--enable-cassert --enable-debug --enable-tap-tests --with-icu
	--without-readline)
build_flags=(CFLAGS='-O1 -g' CPPFLAGS=-DUSE_VALGRIND)

build_packages()
{
	printf '%s\n' gcc=gcc make=make bison=bison flex=flex bzip2=bzip2 \
		pkg-config=pkg-config perl=perl perl:IPC::Run=libipc-run-perl \
		/usr/include/zlib.h=zlib1g-dev /usr/include/unicode/ucol.h=libicu-dev \
		valgrind=valgrind
}

built_server()
{
	local package dir

	package=$(apt-cache show --no-all-versions "postgresql-$1" 2>/dev/null |
		sed -n 's/^Version: //p')
	[[ -n $package ]] || die "apt knows of no postgresql-$1 to build"
	dir=$(cache_dir)/postgresql-$1-$(build_key "$package")
	mkdir -p "${dir%/*}"
	(
		flock 9
		if [[ ! -d $dir ]]; then
			step "building PostgreSQL $1 with assertions in $dir" >&2
			build_server "postgresql-$1" "$dir"
		fi
	) 9>"$dir.lock" || return
	printf '%s\n' "$dir/bin/pg_config"
}

# Another one as soon as there is a new version, or it would be built otherwise.
build_key()
{
	printf '%s\n' "$1" "${build_options[@]}" "${build_flags[@]}" | md5sum | cut -c 1-8
}

build_server()
{
	local partial=$2.partial

	rm -rf "$partial"
	mkdir "$partial"
	if ! build_from_source "$1" "$2" "$partial" </dev/null >"$partial/log" 2>&1; then
		tail -n 30 "$partial/log" >&2
		die "building PostgreSQL failed; its log is $partial/log"
	fi
	mv "$partial/root$2" "$2"
	rm -rf "$partial"
}

# What must stop at the first error stops here by &&, as this is called in a
# condition.
build_from_source()
{
	local partial=$3

	cd "$partial" && fetch_source "$1" && mkdir source build &&
		tar -C source --strip-components=1 -xf postgresql-*.orig.tar.* &&
		cd build &&
		../source/configure --prefix="$2" "${build_options[@]}" "${build_flags[@]}" &&
		make --silent --jobs="$(nproc)" all &&
		make --silent --jobs="$(nproc)" --directory=contrib all &&
		make --silent DESTDIR="$partial/root" install &&
		make --silent DESTDIR="$partial/root" --directory=contrib install &&
		cp ../source/src/tools/valgrind.supp "$partial/root$2"
}

# Download a source package into the current directory.
fetch_source()
{
	local apt=$PWD/apt version option options=()

	mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/cache/archives/partial"
	source_lists "$apt/sources"
	for option in Dir::Etc::SourceList=/dev/null Dir::Etc::SourceParts="$apt/sources" \
		Dir::State::Lists="$apt/lists" Dir::Cache="$apt/cache" \
		APT::Sandbox::User=root Acquire::Languages=none; do
		options+=(--option "$option")
	done
	# somebody else's archive may have no sources; if Debian's has none, the
	# next command says so
	apt-get "${options[@]}" --quiet update || true
	# a mirror may list a version whose files it has not, or no longer
	while IFS= read -r version; do
		if apt-get "${options[@]}" --quiet --download-only --only-source \
			source "$1=$version"; then
			return
		fi
	done < <(apt-cache "${options[@]}" showsrc --only-source "$1" |
		sed -n 's/^Version: //p' | sort --version-sort --reverse)
	return 1
}

# Write the system's sources of apt into a directory, as sources of sources.
source_lists()
{
	local file etc

	etc=$(apt-config shell etc Dir::Etc/d | sed "s/^etc='\(.*\)'$/\1/")
	for file in "$etc"/sources.list "$etc"/sources.list.d/*.list; do
		[[ ! -f $file ]] || sed -n 's/^[[:blank:]]*deb[[:blank:]]/deb-src /p' "$file" \
			>"$1/$(basename "$file" .list).list"
	done
	for file in "$etc"/sources.list.d/*.sources; do
		[[ ! -f $file ]] || sed 's/^\(Types:\).*/\1 deb-src/I' "$file" >"$1/${file##*/}"
	done
}

lend_addons()
{
	local file share lib

	share=$("$2" --sharedir) lib=$("$2" --pkglibdir)
	for file in "$share"/extension/{pgtap,pg_cron}*; do
		as_server_user ln -s "$file" "$1$("$3" --sharedir)/extension"
	done
	as_server_user ln -s "$lib/pg_cron.so" "$1$("$3" --pkglibdir)"
}
