#!/bin/sh
# Boots the guest, shows what it says, and ends as its payload ended:
#
#   sh vm-image/boot.sh QEMU NODE PAYLOAD LOG COUNTED
#
# QEMU is the directory of its packages, NODE is what node.sh printed, PAYLOAD is payload.sh's image, COUNTED is a line to show before the
# runner's last. VM_TIMEOUT is how many seconds the guest may take.
set -eu

qemu=$1 node=$2 payload=$3 log=$4 counted=$5
limit=${VM_TIMEOUT:-3600}
here=$(dirname "$0")

guest=
scratch=$(mktemp --directory "$log.XXXXXX")
end() {
    if [ -n "$guest" ]; then
        # timeout hands it on to QEMU, and makes sure of it.
        kill "$guest" || true
        wait "$guest" || true
    fi
    rm -rf --one-file-system "$scratch"
}
trap end EXIT
trap 'exit 1' HUP INT TERM
mkfifo "$scratch/console"

fail() {
    echo "$0: $*; the guest's console is in $log" >&2
    exit 1
}

{
    tee "$log" <"$scratch/console" | sed --unbuffered -e 's/\r$//' \
        -e '/^guest: the payload ended with /,$d' -e "/^ *Summary \[/i $counted"
} 9>&- &
shown=$!
# In the background: a shell acts on a signal at once while it waits, and not while a program runs.
# Where this is killed the guest is ended too.
setpriv --pdeathsig TERM timeout --foreground --kill-after=10 "$limit" \
    sh "$here/qemu.sh" "$qemu" "$node" "$payload" "$scratch" runcrust.payload -serial stdio \
    </dev/null >"$scratch/console" 2>&1 9>&- &
guest=$!
status=0
wait "$guest" || status=$?
guest=
wait "$shown"

verdict=$(tr -d '\r' <"$log" | sed -n 's/^guest: the payload ended with //p')
case $verdict/$status in
0/*) ;;
# What nextest ends with.
100/*) fail 'tests failed' ;;
[0-9]*/*) fail "the tests weren't run to their end: the payload ended with $verdict" ;;
# What timeout ends with, also where it had to kill.
/124 | /137) fail "the guest took more than the $limit seconds of VM_TIMEOUT" ;;
/0) fail 'the guest ended without a result: its kernel panicked, or its first process failed' ;;
*) fail "the guest ended without a result: QEMU ended with $status" ;;
esac
