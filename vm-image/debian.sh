#!/bin/sh
# Builds the root file system of a Debian release, with the essential packages and others:
#
#   sh vm-image/debian.sh ROOT RELEASE PACKAGE,… [OPTION…]
#   sh vm-image/debian.sh --sources RELEASE
#
# ROOT becomes a directory, unless OPTIONs select another format. RELEASE is a codename (bookworm, trixie, sid), or
# `host` for this host's release. The packages come from the mirrors that this host's apt uses for its own release.
# OPTIONs are passed to mmdebstrap. --sources prints the archives, in the format of sources.list(5).
set -eu

sources() {
    # shellcheck source=/dev/null # os-release(5)
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    release=$1
    if [ "$release" = host ]; then
        release=$codename
    fi
    # apt only lists the indexes of its sources after it has downloaded them.
    if [ -z "$(apt-get indextargets 'Identifier: Packages')" ]; then
        apt-get update -qq >&2
    fi
    # The other release gets the suites that the host has (security, updates), except for sid, which has none of them.
    # $(CODENAME), because $(RELEASE) is what the host's sources say, which may be `stable`.
    # shellcheck disable=SC2016 # the variables are apt's
    apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Identifier: Packages' |
        awk -v from="$codename" -v to="$release" '
            $2 == from || (index($2, from "-") == 1 && to != "sid") {
                sub("^" from, to, $2)
                print "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]", $0
            }' | sort -u
}

if [ "$1" = --sources ]; then
    sources "$2"
    exit
fi

root=$1 release=$2 packages=$3
shift 3
configuration=$(mktemp)
lists=$(mktemp --suffix .list)
trap 'rm -f "$configuration" "$lists"' EXIT
trap 'exit 1' HUP INT TERM
sources "$release" >"$lists"
if [ ! -s "$lists" ]; then
    echo "$0: this host's apt has no source for its own Debian release: see \`apt-get indextargets\`" >&2
    exit 1
fi
# The settings of this host's apt, such as a proxy, or Check-Valid-Until for a snapshot of the archive.
apt-config dump Acquire | grep -v IndexTargets >"$configuration"
# The index of sid is valid for a week. A mirror that is frozen at a date has an older one.
if [ "$release" = sid ]; then
    echo 'Acquire::Check-Valid-Until "false";' >>"$configuration"
fi
# mmdebstrap mounts /proc, /sys and devices in the root. In a mount namespace of its own these mounts end with
# mmdebstrap, and can't prevent the removal of the root. All of its processes end with this script.
setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child \
    mmdebstrap --quiet --mode=root --variant=minbase --format=directory --include="$packages" \
    --aptopt="$configuration" --aptopt='APT::Sandbox::User "root"' "$@" '' "$root" "$lists" >&2
