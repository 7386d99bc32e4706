# What the lab's scenarios share. Sourced by each of them, in a guest that has no network but what
# `networks` makes. The harness gives LAB_BIN (where lariat and lariatd are) and LAB_OUT (a folder
# that outlives the guest), LAB_PATIENCE (what to multiply time limits with), and LAB_STEADY (1: the
# guest's clock counts instructions).
#
#   root namespace   h0  10.9.0.1 / fd09::1   the kernel's side: rxe0 on h0
#   namespace "peer" t0  10.9.0.2 / fd09::2   ours: no rxe, so that UDP 4791 is free for `soft`

set -uo pipefail
NQN=nqn.2026-11.io.lariat:lab
KERNEL_NQN=nqn.2026-11.io.lariat:kernel
HOST_NQN=nqn.2014-08.org.nvmexpress:uuid:6f1b5a52-0000-4000-8000-0000000000aa
HOST_ID=6f1b5a52-0000-4000-8000-0000000000aa
WORK=/run/lab
mkdir -p "$WORK"
passed=0 failed=0 lariatd_pid= lariatd_log= starts=0
# Soft-RoCE (rxe) or Soft-iWARP (siw).
rdma_kind=rxe
# Where our ends run, over which provider, and where our target listens.
ours_in='ip netns exec peer' ours_fabric=soft ours_at='10.9.0.2 fd09::2'

# ours_on_devices: from now on our ends use the RDMA device, beside the kernel's.
ours_on_devices() { ours_in='' ours_fabric=ib ours_at='10.9.0.1 fd09::1'; }

now() { cut -d' ' -f1 /proc/uptime; }

# say WORDS: a line in the log, with the guest's time.
say() { printf '[%s] %s\n' "$(now)" "$*"; }

# check WORDS COMMAND...: runs it; WORDS say what holds when it succeeds.
check() {
    local words=$1 start code
    shift
    start=$(now)
    "$@" >"$WORK/output" 2>&1
    code=$?
    if [ $code = 0 ]; then
        passed=$((passed + 1))
        say "ok      $words ($(awk "BEGIN { printf \"%.1f\", $(now) - $start }") s)"
        return 0
    fi
    failed=$((failed + 1))
    printf '[%s] FAILED  %s: %s gave %s\n' "$(now)" "$words" "$*" $code
    tail -n 40 "$WORK/output" | sed 's/^/        | /'
    return 1
}

# must WORDS COMMAND...: as check; without it the rest is pointless.
must() { check "$@" || finish; }

# finish: the verdict; what helps to understand a failure goes before it.
finish() {
    if [ $failed != 0 ]; then
        echo '--- kernel log'
        dmesg | tail -n 40
        for log in "$WORK"/lariatd*.log; do
            [ -f "$log" ] && { echo "--- $log"; tail -n 40 "$log"; }
        done
        counters
    fi
    echo "checks: $passed passed, $failed failed"
    [ $failed = 0 ] && [ $passed != 0 ]
    exit
}

# counters: what rxe and the links count.
counters() {
    local file
    echo '--- counters that are not zero'
    for file in /sys/class/infiniband/*/ports/1/hw_counters/*; do
        [ -f "$file" ] && [ "$(cat "$file")" != 0 ] && echo "${file##*/} $(cat "$file")"
    done
    ip -s link show dev h0 2>/dev/null
    ip netns exec peer cat /proc/net/snmp 2>/dev/null | grep ^Udp:
}

# patient SECONDS: as many on this machine as it is told to be busy.
patient() { echo $(($1 * ${LAB_PATIENCE:-1})); }

# until_true SECONDS COMMAND...: waits for it to succeed.
until_true() {
    local end
    end=$(($(date +%s) + $(patient "$1")))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt $end ] || return 1
        sleep 0.2
    done
}

# --- networks

# networks [MTU]: the two namespaces and rxe on the kernel's side.
networks() {
    local mtu=${1:-4500}
    sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
    ip link set lo up
    ip netns add peer
    ip -n peer link set lo up
    ip netns exec peer sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
    ip link add h0 type veth peer name t0 netns peer
    ip link set h0 mtu "$mtu"
    ip -n peer link set t0 mtu "$mtu"
    ip addr add 10.9.0.1/24 dev h0
    ip addr add fd09::1/64 dev h0 nodad
    ip -n peer addr add 10.9.0.2/24 dev t0
    ip -n peer addr add fd09::2/64 dev t0 nodad
    ip link set h0 up
    ip -n peer link set t0 up
    modprobe -a ib_uverbs rdma_ucm nvme-rdma nvmet-rdma && load_rdma && add_rdma
}

# load_rdma: the driver of the software device; Debian builds no siw, the harness did.
load_rdma() {
    case $rdma_kind in
    rxe) modprobe rdma_rxe ;;
    siw)
        modprobe -a iw_cm libcrc32c && insmod "${LAB_SIW:?the harness gives it}" || return
        # Before 6.12 it holds root to that limit too.
        ulimit -l unlimited
        ;;
    esac
}

# add_rdma: makes the device, which is always called rxe0.
add_rdma() { rdma link add rxe0 type "$rdma_kind" netdev h0 && until_true 10 rdma_active; }

rdma_active() { rdma link show rxe0/1 | grep -q 'state ACTIVE'; }

# no_networks: removes what `networks` made, so that it can be made anew.
no_networks() {
    rdma link del rxe0
    ip link del h0
    ip netns del peer
    until_true 10 absent /sys/class/net/h0
}

absent() { [ ! -e "$1" ]; }

# impair WORDS...: netem on both directions; without words, none.
impair() {
    tc qdisc del dev h0 root 2>/dev/null
    tc -n peer qdisc del dev t0 root 2>/dev/null
    [ $# = 0 ] && return
    modprobe sch_netem
    tc qdisc add dev h0 root netem limit 10000 "$@" &&
        tc -n peer qdisc add dev t0 root netem limit 10000 "$@"
}

# --- our target

# disk: an ext4 in memory, and on it the file that our target serves; /dev/ram1 is for others.
disk() {
    modprobe brd rd_nr=2 rd_size=$((400 * 1024)) || return
    mkfs.ext4 -q /dev/ram0 && mkdir -p "$WORK/disk" && mount /dev/ram0 "$WORK/disk" || return
    fallocate -l 256M "$WORK/disk/image"
}

# start_lariatd [BLOCK_SIZE]: serves $WORK/disk/image on both addresses.
start_lariatd() {
    local address
    for address in $ours_at; do
        printf '[[listener]]\naddress = "%s"\nfabric = "%s"\n' "$address" $ours_fabric
    done >"$WORK/lariatd.toml"
    cat >>"$WORK/lariatd.toml" <<EOF
[[subsystem]]
nqn = "$NQN"
serial = "LAB1"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
[subsystem.namespace.backend]
type = "file"
path = "$WORK/disk/image"
block_size = ${1:-512}
[target]
reactors = 2
max_queues = 16
EOF
    starts=$((starts + 1))
    lariatd_log=$WORK/lariatd-$starts.log
    # shellcheck disable=SC2086 # a command and its words
    $ours_in env RUST_BACKTRACE=1 "$LAB_BIN/lariatd" --config "$WORK/lariatd.toml" >"$lariatd_log" 2>&1 &
    lariatd_pid=$!
    until_true 30 answered && grep -qx ready "$lariatd_log"
}
answered() { grep -qx ready "$lariatd_log" || gone "$lariatd_pid"; }

# stop_lariatd: SIGTERM; it must end by itself with success.
stop_lariatd() {
    kill -TERM "$lariatd_pid" || return
    until_true 20 gone "$lariatd_pid" || { kill -KILL "$lariatd_pid"; return 1; }
    wait "$lariatd_pid"
}

gone() { ! kill -0 "$1" || grep -q '^State:.*zombie' "/proc/$1/status"; }
open_files() { ls "/proc/$lariatd_pid/fd" | wc -l; }
resident_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$lariatd_pid/status"; }

# --- our initiator

# ours VERB ADDRESS [OPTIONS...]: lariat, where our ends run.
ours() {
    local verb=$1 address=$2
    shift 2
    # shellcheck disable=SC2086 # a command and its words
    $ours_in "$LAB_BIN/lariat" "$verb" -a "$address" --fabric $ours_fabric \
        -q $HOST_NQN -I $HOST_ID "$@"
}

# ours_verify ADDRESS NQN SIZE BLOCK_SIZE [OPTIONS...]: random data written and read back.
ours_verify() {
    local address=$1 nqn=$2 size=$3 block=$4
    shift 4
    head -c "$size" /dev/urandom >"$WORK/sent"
    ours write "$address" -n "$nqn" --quiet --bs "$block" --input "$WORK/sent" "$@" || return
    ours read "$address" -n "$nqn" --quiet --bs "$block" --length "$size" --output "$WORK/received" "$@" || return
    cmp "$WORK/sent" "$WORK/received"
}

# queue_pairs: how many the kernel's side has, but for the connection manager's own.
queue_pairs() { rdma resource show qp 2>/dev/null | grep -c ' type RC '; }
no_queue_pairs() { [ "$(queue_pairs)" = 0 ]; }

# busy: microseconds that the guest's processors worked. (The ticks in /proc/stat are samples, and much of
# what is measured here begins with a timer's interrupt or is over before the next.)
busy() { awk '/^cpu/ { sum += $8 } END { printf "%.0f\n", sum / 1000 }' /proc/schedstat; }

# conforms ADDRESS: the suite that every fabric provider must pass, on the device of that address.
conforms() {
    LARIAT_IB_REQUIRED=1 LARIAT_IB_ADDRESS=$1 timeout "$(patient 380)" \
        "$LAB_CONFORMANCE" --test-threads=1 --show-output >"$WORK/tests" 2>&1
    grep -E '^test .* \.\.\. |panicked' -A 2 "$WORK/tests" | grep -vE '\.\.\. ok$'
    grep -E '^test result: ok\. [1-9][0-9]* passed; 0 failed; 0 ignored' "$WORK/tests"
}
# told: what it said.
told() { grep -E '^(test|SKIPPED)' "$WORK/tests"; }

# --- the kernel's target

# kernel_target ADDRESS FAMILY DEVICE: nvmet-rdma serves DEVICE there.
kernel_target() {
    local root=/sys/kernel/config/nvmet
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    local subsystem=$root/subsystems/$KERNEL_NQN
    if [ ! -d "$subsystem" ]; then
        mkdir "$subsystem" && echo 1 >"$subsystem/attr_allow_any_host" &&
            mkdir "$subsystem/namespaces/1" &&
            echo "$3" >"$subsystem/namespaces/1/device_path" &&
            echo 1 >"$subsystem/namespaces/1/enable" || return
    fi
    local port=$root/ports/$(($(ls $root/ports | wc -l) + 1))
    mkdir "$port" && echo rdma >"$port/addr_trtype" && echo "$2" >"$port/addr_adrfam" &&
        echo "$1" >"$port/addr_traddr" && echo 4420 >"$port/addr_trsvcid" &&
        ln -s "$subsystem" "$port/subsystems/"
}

# no_kernel_target: removes all that kernel_target made.
no_kernel_target() {
    local root=/sys/kernel/config/nvmet port
    for port in $root/ports/*; do
        [ -d "$port" ] && rm -f "$port/subsystems/$KERNEL_NQN" && rmdir "$port"
    done
    rmdir "$root/subsystems/$KERNEL_NQN/namespaces/1" "$root/subsystems/$KERNEL_NQN"
}

# --- the kernel's host

# kernel_connect ADDRESS NQN [OPTIONS...]
kernel_connect() {
    local address=$1 nqn=$2
    shift 2
    # A busy machine may stop a guest for some seconds.
    nvme connect -t rdma -a "$address" -s 4420 -n "$nqn" -q $HOST_NQN -I $HOST_ID --keep-alive-tmo=30 "$@" || return
    until_true 20 device_ready "$nqn"
}

kernel_disconnect() { nvme disconnect -n "$1" && until_true 20 absent_controller "$1"; }

# controller NQN: its name, such as nvme0.
controller() {
    local file
    for file in /sys/class/nvme/nvme*/subsysnqn; do
        [ -f "$file" ] && [ "$(cat "$file")" = "$1" ] && { basename "$(dirname "$file")"; return; }
    done
    return 1
}
absent_controller() { ! controller "$1"; }

# device NQN [NSID]: a namespace's block device. (The kernel looks at namespaces side by side: the numbers in
# the names of devices need not be theirs.)
device() {
    local file name
    for file in /sys/class/nvme-subsystem/nvme-subsys*/subsysnqn; do
        [ -f "$file" ] && [ "$(cat "$file")" = "$1" ] || continue
        for name in "$(dirname "$file")"/nvme*n[0-9]; do
            [ -b "/dev/${name##*/}" ] && [ "$(cat "$name/nsid")" = "${2:-1}" ] && { echo "/dev/${name##*/}"; return; }
        done
    done
    return 1
}
device_ready() { local d; d=$(device "$@") && [ "$(blockdev --getsize64 "$d")" -gt 0 ]; }
controller_live() { [ "$(cat "/sys/class/nvme/$(controller "$1")/state")" = live ]; }

# --- data

# verify DEVICE SIZE BLOCK_SIZES [OPTIONS...]: random writes and reads, every block checked.
verify() {
    local device=$1 size=$2 sizes=$3
    shift 3
    fio --name=verify --filename="$device" --size="$size" --rw=randrw --bs="$sizes" --direct=1 \
        --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
        --randrepeat=0 --group_reporting --minimal "$@"
}

# file_system DEVICE: ext4 made, a real tree copied, checked, mounted again, compared.
file_system() {
    local tree=/usr/share/perl5 mount=$WORK/mount
    [ -d $tree ] || tree=/etc
    mkdir -p "$mount" "$WORK/tree"
    [ -n "$(ls "$WORK/tree")" ] ||
        find $tree -type f -size -200k | sort | sed -n 1,150p | xargs cp --parents -t "$WORK/tree" || return
    mkfs.ext4 -q -F "$1" && mount "$1" "$mount" && cp -r "$WORK/tree" "$mount/" &&
        umount "$mount" && fsck.ext4 -fn "$1" && mount "$1" "$mount" &&
        diff -r "$WORK/tree" "$mount/tree" && umount "$mount"
}
