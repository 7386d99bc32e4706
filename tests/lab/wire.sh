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
        verify "$(device $NQN)" 256k 4k --iodepth=4 && verify "$(device $NQN)" 512k 128k --iodepth=2 &&
        kernel_disconnect $NQN
}
our_host() { ours_verify "$1" $KERNEL_NQN 262144 4k && ours_verify "$1" $KERNEL_NQN 524288 128k; }
count() { tshark -r "$WORK/$1.pcapng" -Y "$2" 2>/dev/null | wc -l; }
some() { local n; n=$(count "$1" "$2"); echo "$n packets"; [ "$n" -gt "${3:-0}" ]; }
none() { tshark -r "$WORK/$1.pcapng" -Y "$2" 2>/dev/null | tee "$WORK/lines" | head -n 5; [ ! -s "$WORK/lines" ]; }

for address in 10.9.0.2 fd09::2; do
    capture_start "target-$address"
    check "the kernel host works with $address" kernel_host $address
    capture_stop
done
for address in 10.9.0.1 fd09::1; do
    capture_start "initiator-$address"
    check "our initiator works with $address" our_host $address
    capture_stop
done
for name in target-10.9.0.2 target-fd09::2 initiator-10.9.0.1 initiator-fd09::1; do
    cp "$WORK/$name.pcapng" "$LAB_OUT/"
    check "$name: packets are RoCEv2" some $name infiniband.bth 200
    check "$name: and nothing else" none $name '!infiniband'
    check "$name: NVMe/RDMA commands and completions" some $name 'nvme-rdma' 20
    check "$name: connection management" some $name 'infiniband.mad.attributeid == 0x0010' 1
    check "$name: nothing malformed" none $name '_ws.malformed || _ws.expert.severity == error'
done
finish
