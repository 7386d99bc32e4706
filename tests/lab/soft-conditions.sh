# Both ends on `soft` with the kernel's, over both MTUs and both IP versions, on links that lose,
# reorder and duplicate.
# limit: 900
. "$(dirname "$0")/lib.sh"

must 'a disk' disk
ours_of() { case $1 in 4) echo 10.9.0.2 ;; 6) echo fd09::2 ;; esac; }
kernels_of() { case $1 in 4) echo 10.9.0.1 ;; 6) echo fd09::1 ;; esac; }
impairments=('' 'loss 1%' 'delay 1ms reorder 75% 50%' 'duplicate 3%')

for mtu in ${LAB_MTUS:-1500 4500}; do
    must "networks with an MTU of $mtu" networks "$mtu"
    must 'lariatd listens' start_lariatd 512
    for family in 4 6; do
        must "the kernel target listens on IPv$family" \
            kernel_target "$(kernels_of $family)" ipv$family /dev/ram1
        for words in "${impairments[@]}"; do
            where="IPv$family, MTU $mtu, ${words:-no impairment}"
            # shellcheck disable=SC2086 # words are words
            impair $words
            if check "$where: the kernel connects to us" kernel_connect "$(ours_of $family)" $NQN --nr-io-queues=2; then
                d=$(device $NQN)
                check "$where: fio verifies 512 B to 64 KiB" verify "$d" 1M 512-64k
                check "$where: fio verifies 256 KiB" verify "$d" 4M 256k --iodepth=8
                check "$where: the kernel disconnects" kernel_disconnect $NQN
            fi
            check "$where: our initiator, 4 KiB" ours_verify "$(kernels_of $family)" $KERNEL_NQN 1048576 4k
            check "$where: our initiator, 256 KiB" ours_verify "$(kernels_of $family)" $KERNEL_NQN 4194304 256k
        done
        impair
    done
    check 'lariatd ends with success' stop_lariatd
    tail -n 2 "$lariatd_log"
    counters
    no_kernel_target
    no_networks
done
finish
