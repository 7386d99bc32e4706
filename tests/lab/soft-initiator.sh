# Our initiator on `soft` uses the kernel's nvmet-rdma over Soft-RoCE: discovery, identity, data
# written, read and compared with what the kernel's disk holds, flush, bench.
# limit: 300
. "$(dirname "$0")/lib.sh"
address=${1:-10.9.0.1}

must 'networks with Soft-RoCE' networks 4500
must 'a disk in memory' modprobe brd rd_nr=1 rd_size=$((128 * 1024))
must 'the kernel target serves it' kernel_target "$address" ipv4 /dev/ram0
. "$(dirname "$0")/our-host.bash"
finish
