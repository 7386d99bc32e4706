# The kernel's host uses our target on `ib` with I/O queues that share their receives.
# limit: 400
. "$(dirname "$0")/lib.sh"
address=10.9.0.1

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk
ours_on_devices
export LARIATD_TARGET__SHARED_RECEIVE=true
must 'lariatd listens' start_lariatd 512
must 'nvme connect' kernel_connect $address $NQN --nr-io-queues=2 --nr-write-queues=2
d=$(device $NQN)
shared() { grep 'share receives' "$lariatd_log"; }
check 'its queues share receives' shared
check 'fio verifies, 512 B, 4 jobs' verify "$d" 256k 512 --numjobs=4 --offset_increment=1M
check 'fio verifies, 4 KiB, 4 jobs' verify "$d" 2M 4k --numjobs=4 --offset_increment=4M
check 'fio verifies, 512 B to 64 KiB mixed' verify "$d" 4M 512-64k --numjobs=2 --offset_increment=8M
check 'nvme disconnect' kernel_disconnect $NQN
rounds() {
    local n
    for ((n = 0; n < 8; n++)); do
        kernel_connect $address $NQN --nr-io-queues=2 && kernel_disconnect $NQN || return
    done
}
check '8 rounds of connect and disconnect' rounds
all_back() { ! grep 'receives did not come back' "$lariatd_log"; }
check 'all receives came back' all_back
check 'no queue pair is left' until_true 10 no_queue_pairs
check 'lariatd ends with success' stop_lariatd
finish
