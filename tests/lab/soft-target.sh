# The kernel's host uses our target on `soft`: discovery, identity, logs, a file system, verified
# random I/O on several queues, deallocation, zeroes, and many rounds of connections.
# limit: 600
. "$(dirname "$0")/lib.sh"
address=${1:-10.9.0.2}

must 'networks with Soft-RoCE' networks 4500
must 'a disk' disk
must 'lariatd listens' start_lariatd 512
. "$(dirname "$0")/kernel-host.bash"
finish
