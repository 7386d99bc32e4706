# Our two ends on different providers: the initiator on an RDMA device and the target on `soft`, and
# the reverse.
# limit: 300
. "$(dirname "$0")/lib.sh"

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk

# both_versions WORDS: over IPv4 and IPv6, at the addresses $at.
both_versions() {
    local address
    for address in $at; do
        local where="$1, $address"
        discover() { ours discover "$address" | tee /dev/stderr | grep -q "$NQN"; }
        check "$where: discover" discover
        check "$where: id-ctrl" ours id-ctrl "$address" -n $NQN
        check "$where: 512 B" ours_verify "$address" $NQN 131072 512
        check "$where: 4 KiB" ours_verify "$address" $NQN 1048576 4k
        check "$where: 128 KiB" ours_verify "$address" $NQN 8388608 128k
        check "$where: 1 MiB" ours_verify "$address" $NQN 8388608 1m
        check "$where: an odd place" ours_verify "$address" $NQN 1049088 64k --offset 7680
        check "$where: flush" ours flush "$address" -n $NQN
        check "$where: bench on two queues" ours bench "$address" -n $NQN \
            --rw randrw --bs 16k --iodepth 8 --queues 2 --runtime 2 --quiet
        cat "$WORK/output"
    done
}
soft() { ours_in='ip netns exec peer' ours_fabric=soft; }

at=$ours_at
must 'lariatd listens, on soft' start_lariatd 512
ours_on_devices
both_versions 'ib to soft'
check 'lariatd ends with success' stop_lariatd
check 'no queue pair is left' until_true 10 no_queue_pairs
at=$ours_at
must 'lariatd listens, on ib' start_lariatd 512
soft
both_versions 'soft to ib'
check 'no queue pair is left' until_true 10 no_queue_pairs
ours_on_devices
both_versions 'ib to ib'
check 'lariatd ends with success' stop_lariatd
finish
