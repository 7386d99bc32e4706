# What the kernel's host does with our target, whatever that runs on. Sourced by scenarios once our
# target listens at $address.

discover() { nvme discover -t rdma -a "$address" -s 4420 -q $HOST_NQN -I $HOST_ID | tee /dev/stderr | grep -q "$NQN"; }
check 'nvme discover names our subsystem' discover
must 'nvme connect' kernel_connect "$address" $NQN --nr-io-queues=2 --nr-write-queues=2 --nr-poll-queues=2
c=/dev/$(controller $NQN) d=$(device $NQN)
say "$c $d, $(cat /sys/class/nvme/"$(controller $NQN)"/queue_count) queues"

listed() { nvme list -o json | tee /dev/stderr | grep -q LAB1; }
check 'nvme list shows it' listed
check 'nvme id-ctrl' nvme id-ctrl "$c"
check 'nvme id-ns' nvme id-ns "$d"
check 'nvme smart-log' nvme smart-log "$c"
check 'nvme error-log' nvme error-log "$c"
check 'nvme fw-log' nvme fw-log "$c"
check 'nvme get-log of the changed namespaces' nvme get-log "$c" --log-id=4 --log-len=4096
check 'nvme get-log of the commands and effects' nvme effects-log "$c"
check 'nvme get-feature: number of queues' nvme get-feature "$c" -f 7
check 'nvme ns-descs' nvme ns-descs "$d"
check 'nvme get-property: status' nvme get-property "$c" --offset=0x1c
check 'nvme list-ns' nvme list-ns "$c"

check 'a file system keeps a tree' file_system "$d"
check 'fio verifies, 512 B, 4 jobs' verify "$d" 256k 512 --numjobs=4 --offset_increment=1M
check 'fio verifies, 4 KiB, 4 jobs' verify "$d" 2M 4k --numjobs=4 --offset_increment=4M
check 'fio verifies, 512 B to 64 KiB mixed' verify "$d" 4M 512-64k --numjobs=2 --offset_increment=8M
check 'fio verifies, 128 KiB' verify "$d" 16M 128k
check 'fio verifies, 1 MiB' verify "$d" 32M 1M --iodepth=8
check 'fio verifies on polled queues' verify "$d" 1M 4k --ioengine=io_uring --hipri --iodepth=8

zeroes() { cmp -n "$1" "$d" /dev/zero; }
random() { dd if=/dev/urandom of="$d" bs=1M count=4 oflag=direct; }
check 'random data written' random
check 'blkdiscard' blkdiscard -o 0 -l 1M "$d"
check 'nvme dsm deallocates ranges' nvme dsm "$d" -d -s 2048,3072 -b 8,16
check 'blkdiscard --zeroout' blkdiscard -z -o 1M -l 1M "$d"
check 'nvme write-zeroes' nvme write-zeroes "$d" -s 4096 -c 2047
written() { blockdev --flushbufs "$d"; cmp -i 1M -n 2M "$d" /dev/zero; }
check 'what was to be zero is zero' written
check 'nvme flush' nvme flush "$d" -n 1
check 'nvme disconnect' kernel_disconnect $NQN

round() { kernel_connect "$address" $NQN --nr-io-queues=2 && kernel_disconnect $NQN; }
rounds() {
    local n end
    end=$(($(date +%s) + $(patient 150)))
    for ((n = 0; n < $1; n++)); do
        round || return
        [ "$(date +%s)" -lt $end ] || { echo "only $n rounds in time"; [ $n -ge 10 ]; return; }
    done
}
check 'two rounds to warm up' rounds 2
files=$(open_files) memory=$(resident_kib)
check '50 rounds of connect and disconnect' rounds 50
say "$(cat "$WORK/output")"
same_files() { echo "before $files, after $(open_files)"; [ "$(open_files)" -le "$files" ]; }
same_memory() { echo "before $memory KiB, after $(resident_kib) KiB"; [ "$(resident_kib)" -le $((memory + 1024)) ]; }
check 'no more open files than before' same_files
check 'no more memory than before' same_memory
check 'no queue pair is left' until_true 10 no_queue_pairs
check 'lariatd ends with success' stop_lariatd
