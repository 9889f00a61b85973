#!/bin/sh
# Boots the guest, prints its console, and exits with the result of its payload:
#
#   sh vm-image/boot.sh QEMU NODE PAYLOAD LOG COUNTS
#
# QEMU is the directory with QEMU's packages that base.sh printed, NODE the directory that node.sh printed, and PAYLOAD
# the image that payload.sh built. The console is also written to LOG. COUNTS is a line to print before the summary of
# nextest. VM_TIMEOUT is the number of seconds after which the guest is stopped.
set -eu

qemu=$1 node=$2 payload=$3 log=$4 counts=$5
limit=${VM_TIMEOUT:-3600}
here=$(dirname "$0")

guest=
scratch=$(mktemp --directory "$log.XXXXXX")
clean_up() {
    if [ -n "$guest" ]; then
        # timeout(1) passes the signal on to QEMU, and kills QEMU if it does not exit.
        kill "$guest" || true
        wait "$guest" || true
    fi
    rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM
mkfifo "$scratch/console"

fail() {
    echo "$0: $*; the guest's console is in $log" >&2
    exit 1
}

{
    tee "$log" <"$scratch/console" | sed --unbuffered -e 's/\r$//' \
        -e '/^guest: the payload ended with /,$d' -e "/^ *Summary \[/i $counts"
} 9>&- &
reader=$!
# In the background, because a shell handles a signal at once while it waits, but not while it runs a program. If this
# script is killed, --pdeathsig stops the guest.
setpriv --pdeathsig TERM timeout --foreground --kill-after=10 "$limit" \
    sh "$here/qemu.sh" "$qemu" "$node" "$payload" "$scratch" runcrust.payload -serial stdio \
    </dev/null >"$scratch/console" 2>&1 9>&- &
guest=$!
status=0
wait "$guest" || status=$?
guest=
wait "$reader"

payload_status=$(tr -d '\r' <"$log" | sed -n 's/^guest: the payload ended with //p')
case $payload_status/$status in
0/*) ;;
# The exit status of nextest if tests failed.
100/*) fail 'tests failed' ;;
[0-9]*/*) fail "nextest did not run all tests: the payload exited with status $payload_status" ;;
# The exit status of timeout(1): 124, or 137 if it had to kill QEMU.
/124 | /137) fail "the guest was stopped after $limit seconds (VM_TIMEOUT)" ;;
/0) fail 'the guest ended without a result: its kernel panicked, or its init failed' ;;
*) fail "the guest ended without a result: QEMU exited with status $status" ;;
esac
