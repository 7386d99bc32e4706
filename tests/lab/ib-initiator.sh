# Our initiator on `ib`, an RDMA device (Soft-RoCE), uses the kernel's nvmet-rdma: all that it does
# with it on `soft`.
# limit: 300
. "$(dirname "$0")/lib.sh"
address=${1:-10.9.0.1}

must 'networks with Soft-RoCE' networks 4500
must 'a disk in memory' modprobe brd rd_nr=1 rd_size=$((128 * 1024))
must 'the kernel target serves it' kernel_target "$address" ipv4 /dev/ram0
ours_on_devices
. "$(dirname "$0")/our-host.bash"
finish
