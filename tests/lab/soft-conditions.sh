# Both ends on `soft` with the kernel's, over both MTUs and both IP versions, on links that lose,
# reorder and duplicate.
# limit: 900
. "$(dirname "$0")/lib.sh"

must 'a disk' disk
ours_of() { case $1 in 4) echo 10.9.0.2 ;; 6) echo fd09::2 ;; esac; }
kernels_of() { case $1 in 4) echo 10.9.0.1 ;; 6) echo fd09::1 ;; esac; }
impairments=('' 'loss 1%' 'delay 1ms reorder 25% 50%' 'duplicate 3%')

# in_each COMMAND: runs it with each IP version (its number is $family) and impairment ($where).
in_each() {
    for family in 4 6; do
        for words in "${impairments[@]}"; do
            where="IPv$family, MTU $mtu, ${words:-no impairment}"
            # shellcheck disable=SC2086 # words are words
            impair $words
            "$1"
        done
    done
    impair
}
kernel_host() {
    dmesg -C
    check "$where: the kernel connects to us" kernel_connect "$(ours_of "$family")" $NQN --nr-io-queues=2 || return
    local d
    d=$(device $NQN)
    check "$where: fio verifies 512 B to 64 KiB" verify "$d" 512k 512-64k
    check "$where: fio verifies 256 KiB" verify "$d" 2M 256k --iodepth=8
    check "$where: the kernel disconnects" kernel_disconnect $NQN
    # Soft-RoCE does not survive every loss (docs/protocol-deviations.md).
    say "$where: the kernel lost $(dmesg | grep -c 'starting error recovery') connections"
}
our_host() {
    check "$where: our initiator, 4 KiB" ours_verify "$(kernels_of "$family")" $KERNEL_NQN 524288 4k
    check "$where: our initiator, 256 KiB" ours_verify "$(kernels_of "$family")" $KERNEL_NQN 2097152 256k
}
# Who waits for an answer in vain asks by another packet whether anything is there. Soft-RoCE has to outlive that.
unheard() {
    tc qdisc add dev h0 root netem loss 100% || return
    ours discover "$1" --connect-timeout 3
    local status=$?
    impair
    [ $status != 0 ]
}

for mtu in ${LAB_MTUS:-1500 4500}; do
    must "networks with an MTU of $mtu" networks "$mtu"
    must 'lariatd listens' start_lariatd 512
    in_each kernel_host
    # Its port of UDP is the only one the kernel answers to: one of ours at a time.
    check 'lariatd ends with success' stop_lariatd
    grep counters "$lariatd_log"
    must 'the kernel target listens on IPv4' kernel_target 10.9.0.1 ipv4 /dev/ram1
    must 'the kernel target listens on IPv6' kernel_target fd09::1 ipv6 /dev/ram1
    in_each our_host
    for family in 4 6; do
        check "IPv$family, MTU $mtu: our initiator is not answered" unheard "$(kernels_of $family)"
        check "IPv$family, MTU $mtu: it is answered again" ours_verify "$(kernels_of $family)" $KERNEL_NQN 524288 4k
    done
    counters
    no_kernel_target
    no_networks
done
finish
