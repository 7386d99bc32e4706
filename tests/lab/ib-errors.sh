# What goes wrong with RDMA devices is said in words that help: no device, no module, no permission,
# a port that is down, too little lockable memory.
# limit: 200
. "$(dirname "$0")/lib.sh"

must 'a network' eval 'ip link set lo up && ip link add h0 type dummy && ip link set h0 mtu 4500 &&
    ip addr add 10.9.0.1/24 dev h0 && ip link set h0 up'
must 'a disk' disk
ours_on_devices
ours_at=10.9.0.1

# unserved WORDS: lariatd ends at once, with these words.
unserved() {
    if start_lariatd 512; then echo 'lariatd listens'; stop_lariatd; return 1; fi
    tail -n 3 "$lariatd_log"
    grep -E "^lariatd: .*($1)" "$lariatd_log"
}
# refused WORDS: so does lariat.
refused() {
    unserved "$1" || return
    if ours discover 10.9.0.1 >"$WORK/ours" 2>&1; then echo 'lariat found something'; return 1; fi
    cat "$WORK/ours"
    grep -E "$1" "$WORK/ours"
}
# nobody COMMAND...: as a user without rights.
nobody='setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all'
chmod 755 "$WORK" "$WORK/disk"
chmod 666 "$WORK/disk/image"
mkdir "$WORK/bin" && cp "$LAB_BIN/lariat" "$LAB_BIN/lariatd" "$WORK/bin/" && LAB_BIN=$WORK/bin

check 'without a device' refused 'this machine has no RDMA device'
must 'Soft-RoCE' eval 'load_rdma && add_rdma && modprobe -a ib_uverbs rdma_ucm'
# udev and librdmacm load that module too, where they can.
mkdir -p /etc/modprobe.d
echo 'install rdma_ucm /bin/false' >/etc/modprobe.d/lab.conf
unloaded() { modprobe -r rdma_ucm; absent /dev/infiniband/rdma_cm; }
must 'but not its module for user space' eval 'sleep 2; until_true 10 unloaded'
check 'without its modules for user space' refused 'rdma_cm does not exist.*modprobe'
rm /etc/modprobe.d/lab.conf
must 'the module' modprobe rdma_ucm
must 'and its file' until_true 10 test -e /dev/infiniband/rdma_cm
# It gives the new file the rights of its rules, also after us.
must 'udev has seen it' udevadm settle --timeout=20
chmod 600 /dev/infiniband/*
ours_in=$nobody
check 'without permission on rdma_cm' refused 'no permission on /dev/infiniband/rdma_cm'
chmod 666 /dev/infiniband/rdma_cm
check 'without permission on the device' refused 'no permission on /dev/infiniband/uverbs'
chmod 666 /dev/infiniband/*
limit=$(ulimit -S -l)
ulimit -S -l 4096
check 'with too little memory to lock' unserved '4096 KiB \(RLIMIT_MEMLOCK\).*ulimit -l unlimited'
ulimit -S -l "$limit"
ours_in=
ip link set h0 down
check 'with its port down' refused 'not active|no RDMA device has 10.9.0.1'
ip link set h0 up
must 'the port is up again' until_true 10 rdma_active
ours_at=10.9.0.99
check 'at an address of nobody' unserved 'no RDMA device has 10.9.0.99.*rxe0 port 1 ACTIVE'
ours_at=10.9.0.1
finish
