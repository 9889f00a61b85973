#!/bin/sh
# Boots the guest, shows what it says, and ends as its payload ended:
#
#   sh vm-image/boot.sh ROOT PAYLOAD LOG
#
# ROOT is what root.sh printed, PAYLOAD is payload.sh's image. VM_ACCEL=kvm uses the processor's
# virtualisation (by default it isn't even looked for: there are machines where opening /dev/kvm
# hangs). VM_TIMEOUT is how many seconds the guest may take.
set -eu

root=$1 payload=$2 log=$3
accel=${VM_ACCEL:-tcg}
limit=${VM_TIMEOUT:-1800}

scratch=$(mktemp --directory "$log.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
truncate --size 512M "$scratch/one" "$scratch/two"

disk() {
    echo "if=virtio,format=raw,cache=unsafe,file=$1"
}

append='root=/dev/vda rw init=/sbin/guest-init console=ttyS0 quiet loglevel=2 panic=-1'
append="$append norandmaps mitigations=off"
# Nothing that the guest writes to its root file system is kept. norandmaps: what QEMU has translated
# of a program serves its next run too.
TMPDIR=$scratch timeout --foreground --kill-after=10 "$limit" \
    qemu-system-x86_64 -accel "$accel" -cpu max -smp 2 -m 2048 -nodefaults -no-reboot \
    -display none -serial stdio -nic none \
    -kernel "$root/vmlinuz" -initrd "$root/initrd.img" \
    -append "$append" \
    -drive "$(disk "$root/root.img"),snapshot=on" \
    -drive "$(disk "$payload"),readonly=on" \
    -drive "$(disk "$scratch/one")" -drive "$(disk "$scratch/two")" \
    </dev/null 2>&1 | tee "$log" | sed --unbuffered -e 's/\r$//' -e '/^guest: /,$d'
verdict=$(tr -d '\r' <"$log" | grep '^guest: ' || true)
[ "$verdict" = 'guest: the payload ended with 0' ] && exit
echo "$0: the guest failed, or took more than $limit seconds; its console is in $log" >&2
exit 1
