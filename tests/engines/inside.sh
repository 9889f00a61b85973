#!/bin/sh
# The part of run.sh that runs in mount and pid namespaces of its own, with the same arguments. Builds the root file
# system of the release if it does not exist, builds the tests, and runs them with that root.
set -eu

cache=$1 release=$2 programs=$3
shift 3
here=$(dirname "$0")
workspace=$(cd "$here/../.." && pwd)

base=$(sh "$workspace/vm-image/base.sh" "$cache" "$release" "$here/packages")

# Writes go to a tmpfs above the root file system, which is removed with the mount namespace.
run=$cache/run
mkdir -p "$run"
mount -t tmpfs -o mode=755 run "$run"
mkdir "$run/root" "$run/upper" "$run/work"
mount -t overlay -o "lowerdir=$base/root,upperdir=$run/upper,workdir=$run/work" engines "$run/root"
# The range of ids for docker's `userns-remap`.
for ids in subuid subgid; do
    echo daemon:600000:65536 >>"$run/root/etc/$ids"
done

# The root file system has no cargo, so nextest reads from files what it would ask cargo for.
nextest=/nextest
mkdir "$run/root$nextest"
cargo metadata --locked --format-version 1 >"$run/root$nextest/cargo-metadata.json"
cargo nextest list --locked --workspace --cargo-quiet --list-type binaries-only --message-format json \
    >"$run/root$nextest/binaries-metadata.json"
cp "$(command -v cargo-nextest)" "$run/root$nextest"

made=$(date --reference="$base/root/var/lib/dpkg/status" +%F)
echo "the engines of Debian $release, installed on $made:"
# shellcheck disable=SC2016 # the variables are dpkg-query's
dpkg-query --root "$base/root" --showformat '  ${Package} ${Version}\n' --show \
    buildah containerd crun docker.io podman runc

set -- unshare --mount --propagation private sh tests/host-namespace.sh \
    "$nextest/cargo-nextest" nextest run --profile engines --run-ignored all \
    --cargo-metadata "$nextest/cargo-metadata.json" --binaries-metadata "$nextest/binaries-metadata.json" "$@"
# The environment variables that the suites read.
for variable in CRUN RUNC RUNCRUST_TEST_SLOWNESS RUST_BACKTRACE; do
    if value=$(printenv "$variable"); then
        set -- "$variable=$value" "$@"
    fi
done
exec sh "$workspace/tests/enter-root.sh" "$run/root" "$workspace" \
    env -i HOME=/root TERM="${TERM-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    RUNCRUST_BIN_DIR="$programs" "$@"
