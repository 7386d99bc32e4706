# The suite that every fabric provider must pass, and the provider's own tests, on an RDMA device
# (Soft-RoCE).
# needs: conformance
# limit: 400
. "$(dirname "$0")/lib.sh"

# A dummy: in one subnet with addresses that never answer, without asking who has them.
must 'a software device' eval 'ip link set lo up && ip link add h0 type dummy && ip link set h0 mtu 4500 &&
    ip addr add 10.9.0.1/24 dev h0 && ip link set h0 up && modprobe -a ib_uverbs rdma_ucm &&
    load_rdma && add_rdma'
check 'all of it passed' conforms 10.9.0.1
told
finish
