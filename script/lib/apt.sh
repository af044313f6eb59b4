# shellcheck shell=bash
#
# Installing what is missing on Debian and its derivatives.
#
#   need_packages WHAT=PACKAGE...
#       See to it that each WHAT is there.  WHAT is a command, an absolute
#       path, perl:Module, python:module, ruby:feature, php:extension,
#       node:module or locale:name; PACKAGE is the Debian package that brings
#       it.  Root gets the missing packages installed, without questions;
#       anybody else is told the exact command and the script ends.  Nothing at
#       all is done, and the network is left alone, when nothing is missing.
#
#   install_packages PACKAGE...
#       Install as root, unconditionally.  No service is started, no database
#       cluster created, and no recommended package comes along.
#
#   server_packages VERSION
#       Print the WHAT=PACKAGE pairs of a server to build and test against,
#       with the extensions that tests and demo use beside ours.
#
#   addon_package VERSION SHAREDIR NAME
#       Print the pair of such an extension alone: NAME is pgtap or cron.
#
#   packaged_server
#       Print the major version of PostgreSQL that this system's release ships;
#       nothing where apt does not know.  (Where apt's lists are empty, as in a
#       fresh container, root has them filled first.)
#
# What decides is whether the thing is there, not whether dpkg knows about it,
# so a server built from source or a Perl module from CPAN is as good.
# Python modules are looked for with /usr/bin/python3, which is where packages
# put them, whatever python3 comes first on the PATH.  Node modules are looked
# for both where packages and where "npm install --global" put them.

node_path=/usr/share/nodejs:/usr/local/lib/node_modules:/usr/lib/node_modules

need_packages()
{
	local pair missing=()

	for pair in "$@"; do
		if ! have "${pair%%=*}" && [[ " ${missing[*]} " != *" ${pair#*=} "* ]]; then
			missing+=("${pair#*=}")
		fi
	done
	if ((${#missing[@]} == 0)); then
		return
	fi
	if ((EUID != 0)); then
		die "some packages are missing; install them with" \
			"\"apt-get install ${missing[*]}\" as root, or run this as root"
	fi
	install_packages "${missing[@]}"
	for pair in "$@"; do
		have "${pair%%=*}" ||
			die "package ${pair#*=} is installed, but ${pair%%=*} is not there"
	done
}

have()
{
	case $1 in
		/*) test -e "$1" ;;
		perl:*) perl -e "require ${1#perl:}" 2>/dev/null ;;
		python:*) /usr/bin/python3 -c "import ${1#python:}" 2>/dev/null ;;
		ruby:*) ruby -r "${1#ruby:}" -e '' 2>/dev/null ;;
		php:*) php -r "exit(extension_loaded('${1#php:}') ? 0 : 1);" 2>/dev/null ;;
		node:*) NODE_PATH=$node_path node -e "require('${1#node:}')" 2>/dev/null ;;
		locale:*) grep -Fxq "${1#locale:}" < <(locale -a) ;;
		*) command -v "$1" >/dev/null ;;
	esac
}

install_packages()
{
	local log status=0

	command -v apt-get >/dev/null ||
		die "no apt-get here to install packages with; wanted: $*"
	step "installing $*"
	log=$(mktemp)
	{
		apt_get update && without_services apt_get install "$@"
	} </dev/null >"$log" 2>&1 || status=$?
	if ((status != 0)); then
		tail -n 30 "$log" >&2
		rm -f "$log"
		die "could not install $*"
	fi
	rm -f "$log"
}

# Two runs may want to install at the same time: the later one waits.  apt
# itself only does so for others that install, not for those that update.
apt_get()
{
	DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 flock /var/lib/apt apt-get \
		--quiet --yes --no-install-recommends \
		--option DPkg::Lock::Timeout=600 "$@"
}

# Debian creates and starts a cluster for each server that is installed, and
# starts other services too, which is not ours to do on somebody's machine.
without_services()
(
	clusters=/etc/postgresql-common/createcluster.d/idempotency.conf
	policy=/usr/sbin/policy-rc.d
	ours=("$clusters")

	mkdir -p "${clusters%/*}"
	echo 'create_main_cluster = false' >"$clusters"
	if [[ ! -e $policy ]]; then
		ours+=("$policy")
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	trap 'rm -f "${ours[@]}"' EXIT
	"$@"
)

server_packages()
{
	local dir=/usr/lib/postgresql/$1 addon

	printf '%s\n' "$dir/bin/postgres=postgresql-$1" \
		"$dir/lib/pgxs/src/makefiles/pgxs.mk=postgresql-server-dev-$1"
	for addon in pgtap cron; do
		addon_package "$1" "/usr/share/postgresql/$1" "$addon"
	done
}

addon_package()
{
	local control=$3

	[[ $control != cron ]] || control=pg_cron
	printf '%s\n' "$2/extension/$control.control=postgresql-$1-$3"
}

packaged_server()
{
	if ! command -v apt-cache >/dev/null; then
		return
	fi
	if ((EUID == 0)) && [[ -z $(apt-cache show postgresql 2>/dev/null) ]]; then
		apt_get update >/dev/null
	fi
	apt-cache depends postgresql 2>/dev/null |
		sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p'
}
