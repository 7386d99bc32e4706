# The kernel's host uses our target on `ib`, an RDMA device (Soft-RoCE): all that it does with our
# target on `soft`.
# limit: 600
. "$(dirname "$0")/lib.sh"
address=${1:-10.9.0.1}

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk
ours_on_devices
must 'lariatd listens' start_lariatd 512
. "$(dirname "$0")/kernel-host.bash"
finish
