# The lab itself: a stock kernel boots, Soft-RoCE and the NVMe modules load, and the kernel's host
# reads and writes the kernel's target. Nothing of ours takes part.
# limit: 180
. "$(dirname "$0")/lib.sh"

must 'networks with Soft-RoCE' networks
must 'a disk in memory' modprobe brd rd_nr=1 rd_size=65536
must 'the kernel target serves it' kernel_target 10.9.0.1 ipv4 /dev/ram0
must 'the kernel host connects' kernel_connect 10.9.0.1 $KERNEL_NQN
check 'fio verifies what it wrote' verify "$(device $KERNEL_NQN)" 2M 4k
check 'nvme get-property: status' nvme get-property /dev/$(controller $KERNEL_NQN) --offset=0x1c
check 'the kernel host disconnects' kernel_disconnect $KERNEL_NQN
finish
