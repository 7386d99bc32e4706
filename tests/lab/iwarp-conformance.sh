# The suite that every fabric provider must pass, on Soft-iWARP. By name: once in six runs siw called an
# RDMA READ a success that its peer had refused, which the suite finds.
# needs: siw conformance
# limit: 400
# run: by name
. "$(dirname "$0")/lib.sh"
rdma_kind=siw

must 'networks with Soft-iWARP' networks 4500
# An address of the subnet that never answers, without asking who has it.
must 'a silent neighbour' ip neigh replace 10.9.0.253 lladdr 02:00:00:00:00:fd nud permanent dev h0
check 'all of it passed' conforms 10.9.0.1
told
finish
