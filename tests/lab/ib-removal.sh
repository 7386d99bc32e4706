# What devices say of their ports is told, and a device that goes away under connections is let go.
# limit: 240
. "$(dirname "$0")/lib.sh"

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk
ours_on_devices
ours_at=10.9.0.1
must 'lariatd listens' start_lariatd 512
must 'our initiator works with it' ours_verify 10.9.0.1 $NQN 131072 4k
ip link set h0 down
check 'it says that the port is down' until_true 10 grep -q 'the port is down' "$lariatd_log"
ip link set h0 up
check 'it says that the port is up' until_true 10 grep -q 'the port is up' "$lariatd_log"
until_true 10 rdma_active
must 'the kernel host connects' kernel_connect 10.9.0.1 $NQN --nr-io-queues=2
ours bench 10.9.0.1 -n $NQN --rw randread --bs 4k --iodepth 4 --runtime 60 --quiet >"$WORK/bench" 2>&1 &
bench=$!
sleep 5
# Soft-RoCE waits for all users to close the device; drivers of hardware do not.
rdma link del rxe0 &
removal=$!
check 'lariatd says that the device went away' until_true 30 grep -q 'RDMA device went away.*rxe0' "$lariatd_log"
check 'and that it listens no more' until_true 10 grep -q 'device of a listener went away' "$lariatd_log"
check 'the kernel host let go' until_true 20 absent_controller $NQN
ended() { until_true 90 gone $bench || { kill $bench; return 1; }; cat "$WORK/bench"; ! grep -i panic "$WORK/bench"; }
check 'our initiator that was at work ends' ended
device_files() { ls -l /proc/[0-9]*/fd 2>/dev/null | grep -E '/dev/infiniband/uverbs|infinibandevent'; }
check 'the device is gone' until_true 20 gone $removal || { device_files; cat /proc/$removal/stack; }
must 'the device comes back' add_rdma
check 'lariatd listens again' until_true 10 grep -q 'listening again' "$lariatd_log"
check 'our initiator works again' ours_verify 10.9.0.1 $NQN 131072 4k
check 'the kernel host connects again' kernel_connect 10.9.0.1 $NQN --nr-io-queues=2
check 'and disconnects' kernel_disconnect $NQN
check 'lariatd ends with success' stop_lariatd
counted() { grep counters "$lariatd_log" | tee /dev/stderr | grep -qE 'completions: [1-9]'; }
check 'and has counted completions' counted
finish
