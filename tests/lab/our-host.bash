# What our initiator does with the kernel's target, whatever it runs on. Sourced by scenarios once
# that target serves /dev/ram0 at $address.

discover() { ours discover "$address" | tee /dev/stderr | grep -q $KERNEL_NQN; }
check 'discover names the kernel subsystem' discover
check 'id-ctrl' ours id-ctrl "$address" -n $KERNEL_NQN
check 'list-ns' ours list-ns "$address" -n $KERNEL_NQN
check 'id-ns' ours id-ns "$address" -n $KERNEL_NQN --namespace-id 1
for block in 512 4k 64k 128k 1m; do
    size=$((8 << 20))
    [ $block = 512 ] && size=$((256 << 10))
    check "written, read back, the same: $block" ours_verify "$address" $KERNEL_NQN $size $block
    # Not through the page cache, which the kernel target goes past.
    on_disk() { dd if=/dev/ram0 iflag=direct bs=64k count=$((size >> 16)) | cmp - "$WORK/sent"; }
    check 'and on the kernel disk' on_disk
done
check 'an odd place' ours_verify "$address" $KERNEL_NQN 1049088 64k --offset 7680
check 'flush' ours flush "$address" -n $KERNEL_NQN
for rw in randread randwrite read; do
    check "bench $rw" ours bench "$address" -n $KERNEL_NQN --rw $rw --bs 4k --iodepth 16 --runtime 3 --quiet
    cat "$WORK/output"
done
check 'bench randrw, two queues' ours bench "$address" -n $KERNEL_NQN --rw randrw --bs 16k --iodepth 8 --queues 2 --runtime 3 --quiet
cat "$WORK/output"
rounds() { local n; for ((n = 0; n < 20; n++)); do ours flush "$address" -n $KERNEL_NQN || return; done; }
check '20 rounds of connect, flush and disconnect' rounds
check 'the kernel has no queue pair left' until_true 10 no_queue_pairs
