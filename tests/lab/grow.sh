# A disk that is made larger while its target is down is larger for the kernel's host once that has
# reconnected, as docs/operating.md says, and a file system on it grows.
# limit: 240
. "$(dirname "$0")/lib.sh"

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk
must 'lariatd listens' start_lariatd 4096
connect() { kernel_connect 10.9.0.2 $NQN --nr-io-queues=2 --reconnect-delay=2 --ctrl-loss-tmo=300; }
must 'the kernel host connects' connect
d=$(device $NQN)
has() { echo "$(blockdev --getsize64 "$d") bytes"; [ "$(blockdev --getsize64 "$d")" = "$1" ]; }
must 'a file system' eval 'mkfs.ext4 -q -F "$d" && mkdir -p "$WORK/mount" && mount "$d" "$WORK/mount"'
echo kept >"$WORK/mount/file"
check 'it has 256 MiB' has $((256 << 20))
check 'made larger while it is served' truncate -s 288M "$WORK/disk/image"
check 'nvme ns-rescan' nvme ns-rescan "/dev/$(controller $NQN)"
sleep 3
check 'it has 256 MiB still' has $((256 << 20))
check 'lariatd ends with success' stop_lariatd
check 'lariatd starts again' start_lariatd 4096
check 'the host comes back by itself' until_true 60 controller_live $NQN
check 'it has 288 MiB without a rescan' until_true 20 has $((288 << 20))
check 'the kernel says so' eval 'dmesg | grep "detected capacity change"'
check 'the file system grows, mounted' resize2fs "$d"
check 'and has its file' grep -q kept "$WORK/mount/file"
check 'unmounted, it is whole' eval 'umount "$WORK/mount" && fsck.ext4 -fn "$d"'
check 'nvme disconnect' kernel_disconnect $NQN
check 'lariatd ends with success' stop_lariatd
finish
