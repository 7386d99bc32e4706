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
more_work() { until_true "$1" work_rounds $(($(cat "$WORK/rounds") + 2)) || { cat "$WORK/work"; return 1; }; }
work_stop() { touch "$WORK/stop"; wait $work_pid || { cat "$WORK/work"; return 1; }; }
whole() { umount "$WORK/mount" && fsck.ext4 -fn "$d" && mount "$d" "$WORK/mount"; }

work_start
must 'the workload runs' more_work 120
for seconds in 2 5 20; do
    ip -n peer link set t0 down
    sleep $seconds
    ip -n peer link set t0 up
    ip -n peer addr add fd09::2/64 dev t0 nodad 2>/dev/null
    check "link down for $seconds s: the workload goes on" more_work 120
done
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
check 'our target drops it after its keep-alive time' until_true 60 grep -qi 'keep.alive' "$lariatd_log"
grep -i 'keep.alive' "$lariatd_log" | tail -n 3
impair
check 'the host comes back by itself' until_true 60 controller_live $NQN
check 'and reads' dd if="$d" of=/dev/null bs=1M count=4 iflag=direct
check 'nvme disconnect' kernel_disconnect $NQN
fewer() { echo "before $files, after $(open_files)"; [ "$(open_files)" -le "$files" ]; }
check 'no more open files than before' fewer
check 'lariatd ends with success' stop_lariatd
finish
