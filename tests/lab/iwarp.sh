# Both of our ends with the kernel's over Soft-iWARP, whose module Debian does not build: the
# kernel's host with our target, our initiator with the kernel's target, and ours with ours.
# needs: siw
# limit: 700
. "$(dirname "$0")/lib.sh"
rdma_kind=siw
address=${1:-10.9.0.1}

must 'networks with Soft-iWARP' networks 4500
must 'a disk' disk
ours_on_devices
must 'lariatd listens' start_lariatd 512
chosen() { grep -E 'iWARP' "$lariatd_log"; }
check 'and says that it is iWARP' chosen
. "$(dirname "$0")/kernel-host.bash"
must 'lariatd listens again' start_lariatd 512
check 'our own initiator: 4 KiB' ours_verify "$address" $NQN 1048576 4k
check 'our own initiator: 1 MiB' ours_verify "$address" $NQN 8388608 1m
check 'lariatd ends with success' stop_lariatd
umount "$WORK/disk"
must 'the kernel target serves a disk' kernel_target "$address" ipv4 /dev/ram0
. "$(dirname "$0")/our-host.bash"
finish
