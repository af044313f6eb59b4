# shellcheck shell=bash
#
# What the scripts say to the person who runs them.
#
#   step MESSAGE...    a line that says what begins now, with the time of day
#   die MESSAGE...     say why on standard error and leave with status 2
#
# Status 2 means "could not be run", as opposed to 1, "ran and found a fault".

step()
{
	printf '== %s %s\n' "$(date +%H:%M:%S)" "$*"
}

die()
{
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 2
}
