# The kernel host lives through a link that is cut, a target that dies, and our target through a
# host that vanishes: a file system stays whole, and nothing is held for those that are gone.
# limit: 600
. "$(dirname "$0")/lib.sh"

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk
must 'lariatd listens' start_lariatd 4096
connect() { kernel_connect 10.9.0.2 $NQN --nr-io-queues=2 --reconnect-delay=2 --keep-alive-tmo=5 --ctrl-loss-tmo=300; }
must 'the kernel host connects' connect
d=$(device $NQN)
mkdir -p "$WORK/mount"
must 'a file system' eval 'mkfs.ext4 -q -F "$d" && mount "$d" "$WORK/mount"'

# Writes and verifies a file of the file system until told to stop.
work_start() {
    rm -f "$WORK/stop"
    (
        round=0
        until [ -e "$WORK/stop" ]; do
            fio --name=work --filename="$WORK/mount/file" --size=4M --rw=randwrite --bs=4k-64k --direct=1 \
                --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --minimal >"$WORK/work" 2>&1 || exit 1
            round=$((round + 1))
            echo $round >"$WORK/rounds"
        done
    ) &
    work_pid=$!
    echo 0 >"$WORK/rounds"
}
work_rounds() { [ "$(cat "$WORK/rounds")" -ge "$1" ]; }
# more_work SECONDS: two more rounds end within that time.
more_work() { until_true "$1" work_rounds $(($(cat "$WORK/rounds") + 2)) || { what_happened; return 1; }; }
work_stop() {
    touch "$WORK/stop"
    until_true 120 gone $work_pid || { what_happened; return 1; }
    wait $work_pid || { what_happened; return 1; }
}
what_happened() {
    cat "$WORK/work"
    cat "/sys/class/nvme/$(controller $NQN)/state"
    dmesg | grep nvme | tail -n 12
    rdma resource show qp
    rdma resource show cm_id
    timeout 15 tshark -i h0 -a duration:8 2>/dev/null | tail -n 10
    tail -n 15 "$lariatd_log"
}
whole() { umount "$WORK/mount" && fsck.ext4 -fn "$d" && mount "$d" "$WORK/mount"; }

work_start
must 'the workload runs' more_work 120
# The device at the other end, so that Soft-RoCE loses its carrier, and with it IPv6 addresses.
for seconds in ${LAB_CUTS:-5 60}; do
    ip -n peer link set t0 down
    sleep "$seconds"
    ip -n peer link set t0 up
    ip -n peer addr add fd09::2/64 dev t0 nodad
    check "the device down for $seconds s: the workload goes on" more_work 120
done
# A network that loses everything, of which no device says anything.
impair loss 100%
sleep 15
impair
check 'the network gone for 15 s: the workload goes on' more_work 120
kill -KILL "$lariatd_pid"
sleep 3
check 'the target was killed and starts again' start_lariatd 4096
check 'the workload goes on' more_work 120
check 'the workload ends without an error' work_stop
check 'the file system is whole' whole

umount "$WORK/mount"
files=$(open_files)
impair loss 100%
say 'the host is cut off'
check 'our target drops it after its keep-alive time' until_true 60 grep -q KeepAliveExpired "$lariatd_log"
impair
check 'the host comes back by itself' until_true 60 controller_live $NQN
check 'and reads' dd if="$d" of=/dev/null bs=1M count=4 iflag=direct
check 'nvme disconnect' kernel_disconnect $NQN
fewer() { echo "before $files, after $(open_files)"; [ "$(open_files)" -le "$files" ]; }
check 'no more open files than before' fewer
check 'lariatd ends with success' stop_lariatd
finish
