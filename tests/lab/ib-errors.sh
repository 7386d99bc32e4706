# What goes wrong with RDMA devices is said in words that help: no device, no module, no permission,
# a port that is down, too little lockable memory. And a device that goes away under connections is
# let go at once, and served again when it comes back.
# limit: 300
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
# Where udev is at work it loads that module too.
unloaded() { modprobe -r rdma_ucm; absent /dev/infiniband/rdma_cm; }
must 'but not its module for user space' eval 'sleep 2; until_true 10 unloaded'
check 'without its modules for user space' refused 'rdma_cm does not exist.*modprobe'
must 'the module' modprobe rdma_ucm
must 'and its file' until_true 10 test -e /dev/infiniband/rdma_cm
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

# --- a device that goes away

must 'lariatd listens' start_lariatd 512
must 'our initiator works with it' ours_verify 10.9.0.1 $NQN 131072 4k
files=$(open_files)
ip link set h0 down
check 'it says that the port is down' until_true 10 grep -q 'the port is down' "$lariatd_log"
ip link set h0 up
check 'it says that the port is up' until_true 10 grep -q 'the port is up' "$lariatd_log"
until_true 10 rdma_active
must 'the kernel host connects' kernel_connect 10.9.0.1 $NQN --nr-io-queues=2
ours bench 10.9.0.1 -n $NQN --rw randread --bs 4k --iodepth 4 --runtime 60 --quiet >"$WORK/bench" 2>&1 &
bench=$!
sleep 5
check 'the device goes within 20 s' timeout "$(patient 20)" rdma link del rxe0
check 'lariatd says so' grep -q 'RDMA device went away.*rxe0' "$lariatd_log"
check 'and that it listens no more' grep -q 'device of a listener went away' "$lariatd_log"
ended() { until_true 90 gone $bench || { kill $bench; return 1; }; cat "$WORK/bench"; ! grep -i panic "$WORK/bench"; }
connections() { ls /sys/class/nvme; absent_controller $NQN; }
check 'the kernel host let go' until_true 20 connections
must 'the device comes back' add_rdma
check 'lariatd listens again' until_true 10 grep -q 'listening again.*10.9.0.1' "$lariatd_log"
check 'our initiator that was at work ends' ended
check 'our initiator works again' ours_verify 10.9.0.1 $NQN 131072 4k
must 'the kernel host connects again' kernel_connect 10.9.0.1 $NQN --nr-io-queues=2
check 'and verifies' verify "$(device $NQN)" 512k 4k
check 'nvme disconnect' kernel_disconnect $NQN
fewer() { echo "before $files, after $(open_files)"; [ "$(open_files)" -le "$files" ]; }
check 'no more open files than before' until_true 20 fewer
check 'a second time' timeout "$(patient 20)" rdma link del rxe0
must 'the device comes back' add_rdma
listens_twice() { [ "$(grep -c 'listening again' "$lariatd_log")" = 2 ]; }
check 'lariatd listens again' until_true 10 listens_twice
check 'our initiator works again' ours_verify 10.9.0.1 $NQN 131072 4k
check 'lariatd ends with success' stop_lariatd
counted() { grep counters "$lariatd_log" | tee /dev/stderr | grep -qE 'completions: [1-9]'; }
check 'and has counted completions' counted
finish
