# A device that goes away under connections is let go at once, and served again when it comes back;
# what devices say of their ports is told.
# limit: 240
. "$(dirname "$0")/lib.sh"

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk
ours_on_devices
ours_at=10.9.0.1
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
