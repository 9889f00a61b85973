#!/bin/sh
# What `make engines` does: runs suites with the container engines of another Debian release:
#
#   sh tests/engines/run.sh CACHE RELEASE PROGRAMS [ARGUMENT…]
#
# PROGRAMS is the directory of the programs to test; ARGUMENTs are nextest's. The release's root file
# system is kept in CACHE; nothing that is done in it is.
set -eu

cache=$1 release=$2 programs=$3
shift 3
here=$(dirname "$0")
workspace=$(cd "$here/../.." && pwd)

mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock --nonblock 9; then
    echo "$0: waiting for another run in $cache" >&2
    flock 9
fi
# Of runs that were killed.
rm -rf --one-file-system "$cache"/new.* "$cache"/run.*
base=$(sh "$workspace/vm-image/base.sh" "$cache" "$release" "$here/packages" 9>&-)

run=$(mktemp --directory "$cache/run.XXXXXX")
trap 'rm -rf --one-file-system "$run"' EXIT
trap 'exit 1' HUP INT TERM
cargo metadata --locked --format-version 1 >"$run/cargo-metadata.json"
cargo nextest list --locked --workspace --cargo-quiet --list-type binaries-only --message-format json \
    >"$run/binaries-metadata.json"
cp "$(command -v cargo-nextest)" "$run"

echo "the engines of Debian $release:"
# shellcheck disable=SC2016 # the variables are dpkg-query's
dpkg-query --root "$base/root" --showformat '  ${Package} ${Version}\n' --show \
    buildah containerd crun docker.io podman runc

export RUNCRUST_BIN_DIR="$programs"
# A tmpfs above the root file system takes what is written.
# shellcheck disable=SC2016 # that is for the shell inside
unshare --mount --propagation private --pid --fork --kill-child sh -eu -c '
    base=$1 run=$2 workspace=$3
    shift 3
    mkdir "$run/root" "$run/written"
    mount -t tmpfs -o mode=755 written "$run/written"
    mkdir "$run/written/upper" "$run/written/work"
    mount -t overlay -o "lowerdir=$base/root,upperdir=$run/written/upper,workdir=$run/written/work" \
        engines "$run/root"
    # The ids that a docker daemon remaps containers to.
    for ids in subuid subgid; do
        echo daemon:600000:65536 >>"$run/root/etc/$ids"
    done
    exec sh "$workspace/tests/enter-root.sh" "$run/root" "$workspace" \
        env -i HOME=/root TERM="${TERM-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        RUNCRUST_BIN_DIR="$RUNCRUST_BIN_DIR" RUST_BACKTRACE="${RUST_BACKTRACE-}" \
        unshare --mount --propagation private sh tests/host-namespace.sh \
        "$run/cargo-nextest" nextest run --profile engines --run-ignored all \
        --cargo-metadata "$run/cargo-metadata.json" --binaries-metadata "$run/binaries-metadata.json" "$@"
' sh "$base" "$run" "$workspace" "$@"
