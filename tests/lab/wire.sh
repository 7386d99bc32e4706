# tshark dissects what we send, in both roles, as RoCEv2 and NVMe/RDMA with nothing malformed.
# limit: 300
. "$(dirname "$0")/lib.sh"

must 'networks with Soft-RoCE' networks 4500
# Segments as they would be on a wire, not one large packet that veth hands over whole.
must 'segments on the wire' ip -n peer link set t0 gso_max_segs 1
must 'a disk' disk
must 'lariatd listens' start_lariatd 512
must 'the kernel target listens' kernel_target 10.9.0.1 ipv4 /dev/ram1
must 'and on IPv6' kernel_target fd09::1 ipv6 /dev/ram1

capture_start() {
    dumpcap -q -i h0 -w "$WORK/$1.pcapng" -f 'udp port 4791' 2>"$WORK/dumpcap" &
    capture_pid=$!
    until_true 20 grep -q File "$WORK/dumpcap"
}
capture_stop() { sleep 1; kill -INT $capture_pid; wait $capture_pid; }
kernel_host() {
    kernel_connect "$1" $NQN --nr-io-queues=1 &&
        verify "$(device $NQN)" 64k 4k --iodepth=4 && verify "$(device $NQN)" 256k 128k --iodepth=2 &&
        kernel_disconnect $NQN
}
our_host() { ours_verify "$1" $KERNEL_NQN 65536 4k && ours_verify "$1" $KERNEL_NQN 262144 128k; }
# dissect NAME: one line per packet (one pass: tshark is slow under emulation).
dissect() {
    tshark -r "$WORK/$1.pcapng" -T fields -E separator='|' -e frame.number -e _ws.col.Protocol \
        -e infiniband.bth.opcode -e infiniband.mad.attributeid -e _ws.malformed -e _ws.expert.severity \
        -e ip.src -e ipv6.src -e _ws.col.Info >"$WORK/$1.txt" 2>/dev/null && [ -s "$WORK/$1.txt" ]
}
# some NAME MINIMUM CONDITION: at least so many packets for which awk's condition holds.
some() { awk -F'|' -v n="$2" "$3 { n-- } END { print NR, \"packets\"; exit n > 0 }" "$WORK/$1.txt"; }
# none NAME CONDITION: no packet for which it holds.
none() { awk -F'|' "$2 { print; found = 1 } END { exit found }" "$WORK/$1.txt"; }

for address in 10.9.0.2 fd09::2; do
    capture_start "target-$address"
    check "the kernel host works with $address" kernel_host $address
    capture_stop
done
# Its port of UDP is the only one the kernel answers to: one of ours at a time.
check 'lariatd ends with success' stop_lariatd
for address in 10.9.0.1 fd09::1; do
    capture_start "initiator-$address"
    check "our initiator works with $address" our_host $address
    capture_stop
done
for name in target-10.9.0.2 target-fd09::2 initiator-10.9.0.1 initiator-fd09::1; do
    cp "$WORK/$name.pcapng" "$LAB_OUT/"
    must "$name: dissected" dissect $name
    check "$name: RoCEv2" some $name 200 '$3 != ""'
    check "$name: and nothing else" none $name '$3 == ""'
    check "$name: NVMe/RDMA" some $name 20 '$2 ~ /NVMe/'
    check "$name: connection management" some $name 2 '$4 != ""'
    check "$name: nothing malformed" none $name '$5 != "" || $9 ~ /[Mm]alformed/'
    # Of ours alone: Soft-RoCE sends no UDP checksum, which tshark calls an error on IPv6.
    check "$name: nothing that tshark calls an error in ours" none $name \
        '$6 ~ /8388608/ && ($7 == "10.9.0.2" || $8 == "fd09::2")'
    check "$name: packets of ours are there" some $name 40 '$7 == "10.9.0.2" || $8 == "fd09::2"'
done
finish
