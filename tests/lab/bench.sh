# Side by side: what remote disks cost over one network. The kernel's host with the kernel's target and with
# ours, our initiator with both, the kernel's iSCSI over TCP and iSER; the same null and memory disks.
# limit: 1800
# run: by name
. "$(dirname "$0")/lib.sh"

seconds=2 rounds=2
out=$LAB_OUT/bench
rm -rf "$out" && mkdir -p "$out"
iqn=iqn.2026-11.io.lariat
address=10.9.0.1

# --- the targets. Each serves /dev/nullbN (no data) and /dev/ramN, or what is the same to it.

kernel_port=4422
nvmet() {
    local root=/sys/kernel/config/nvmet
    local subsystem=$root/subsystems/$KERNEL_NQN port=$root/ports/9
    mkdir "$subsystem" && echo 1 >"$subsystem/attr_allow_any_host" || return
    mkdir "$subsystem/namespaces/1" "$subsystem/namespaces/2" || return
    echo /dev/nullb0 >"$subsystem/namespaces/1/device_path" && echo /dev/ram0 >"$subsystem/namespaces/2/device_path" &&
        echo 1 >"$subsystem/namespaces/1/enable" && echo 1 >"$subsystem/namespaces/2/enable" &&
        mkdir "$port" && echo rdma >"$port/addr_trtype" && echo ipv4 >"$port/addr_adrfam" &&
        echo $address >"$port/addr_traddr" && echo $kernel_port >"$port/addr_trsvcid" &&
        ln -s "$subsystem" "$port/subsystems/"
}

lariatd() {
    cat >"$WORK/lariatd.toml" <<EOF
[[listener]]
address = "$address"
fabric = "ib"
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
backend = { type = "null", size = "256MiB" }
[[subsystem.namespace]]
nsid = 2
backend = { type = "memory", size = "256MiB" }
[target]
reactors = 1
EOF
    lariatd_log=$WORK/lariatd-1.log
    "$LAB_BIN/lariatd" --config "$WORK/lariatd.toml" >"$lariatd_log" 2>&1 &
    lariatd_pid=$!
    until_true 30 grep -qx ready "$lariatd_log"
}

# spdk: its target, from the build in LAB_SPDK, over the same device. It never sleeps, so it is stopped
# while others are measured; a host that waits an hour for a keep-alive does not mind.
spdk_port=4424 spdk_nqn=nqn.2026-11.io.lariat:spdk
spdk() {
    local transport='"trtype": "RDMA"' blocks=$((256 * 1024 * 1024 / 512)) log=$WORK/spdk.log
    cat >"$WORK/spdk.json" <<EOF
{"subsystems": [{"subsystem": "bdev", "config": [
  {"method": "bdev_null_create", "params": {"name": "null", "block_size": 512, "num_blocks": $blocks}},
  {"method": "bdev_malloc_create", "params": {"name": "memory", "block_size": 512, "num_blocks": $blocks}}]},
 {"subsystem": "nvmf", "config": [
  {"method": "nvmf_create_transport", "params": {$transport}},
  {"method": "nvmf_create_subsystem", "params": {"nqn": "$spdk_nqn", "allow_any_host": true, "serial_number": "LAB2"}},
  {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "$spdk_nqn", "namespace": {"bdev_name": "null", "nsid": 1}}},
  {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "$spdk_nqn", "namespace": {"bdev_name": "memory", "nsid": 2}}},
  {"method": "nvmf_subsystem_add_listener", "params": {"nqn": "$spdk_nqn", "listen_address":
   {$transport, "adrfam": "IPv4", "traddr": "$address", "trsvcid": "$spdk_port"}}}]}]}
EOF
    "$LAB_SPDK/build/bin/nvmf_tgt" -m 0x1 --no-huge -s 768 --no-pci -r "$WORK/spdk.sock" -c "$WORK/spdk.json" >"$log" 2>&1 &
    spdk_pid=$!
    until_true 60 spdk_listens && nvme_host spdk $spdk_nqn $spdk_port --keep-alive-tmo=3600 && kill -STOP $spdk_pid && return
    cat "$log"
    return 1
}
spdk_listens() { nvme discover -t rdma -a $address -s $spdk_port -q $HOST_NQN -I $HOST_ID | grep -q $spdk_nqn; }

# lio NAME PORT ISER: a target with both disks. The first call makes the disks.
lio() {
    local root=/sys/kernel/config/target
    local group=$root/iscsi/$iqn:$1/tpgt_1 disk portal
    if [ ! -d $root/core/iblock_0/null ]; then
        for disk in null:/dev/nullb1 memory:/dev/ram1; do
            mkdir -p "$root/core/iblock_0/${disk%%:*}" &&
                echo "udev_path=${disk#*:}" >"$root/core/iblock_0/${disk%%:*}/control" &&
                echo 1 >"$root/core/iblock_0/${disk%%:*}/enable" || return
        done
    fi
    mkdir -p "$group" &&
        echo 0 >"$group/attrib/authentication" &&
        echo 1 >"$group/attrib/generate_node_acls" &&
        echo 0 >"$group/attrib/demo_mode_write_protect" || return
    mkdir "$group/lun/lun_0" "$group/lun/lun_1" &&
        ln -s $root/core/iblock_0/null "$group/lun/lun_0/" &&
        ln -s $root/core/iblock_0/memory "$group/lun/lun_1/" || return
    portal=$group/np/$address:$2
    mkdir "$portal" || return
    [ "$3" = 0 ] || echo 1 >"$portal/iser" || return
    echo 1 >"$group/enable"
}

# --- the kernel's hosts

# iscsi NAME PORT TRANSPORT: logs in; the disks become $NAME.null and $NAME.memory in $WORK.
iscsi() {
    local node=(iscsiadm -m node -T "$iqn:$1" -p "$address:$2")
    "${node[@]}" -o new && "${node[@]}" -o update -n iface.transport_name -v "$3" &&
        "${node[@]}" --login && until_true 20 iscsi_disks "$1"
}
iscsi_disks() {
    iscsiadm -m session -P 3 | awk -v name="$iqn:$1" -v to="$WORK/$1" '
        $1 == "Target:" { ours = $2 == name }
        ours && /Lun:/ { lun = $NF }
        ours && /Attached scsi disk/ { print "/dev/" $4 > (to (lun == 0 ? ".null" : ".memory")); found++ }
        END { exit found != 2 }'
}

# nvme_host NAME NQN PORT [OPTIONS...]
nvme_host() {
    nvme connect -t rdma -a $address -s "$3" -n "$2" -q $HOST_NQN -I $HOST_ID --nr-io-queues=2 "${@:4}" || return
    until_true 20 device_ready "$2" 1 && device "$2" 1 >"$WORK/$1.null" &&
        until_true 20 device_ready "$2" 2 && device "$2" 2 >"$WORK/$1.memory"
}

# --- measuring

# fill PEER: its memory disk is written from end to end, so that nobody is measured at getting memory. (Then
# lariatd asks for huge pages, once.)
fill() {
    fio --name=fill --filename="$(cat "$WORK/$1.memory")" --rw=write --bs=128k --iodepth=16 --size=256m \
        --ioengine=io_uring --direct=1
}

# measure PEER DISK WORKLOAD ROUND: the tool's command, its report, and what it cost.
measure() {
    local name=$out/$1-$2-$3-$4 before client words
    command_of "$1" "$2" "$3"
    echo "${words[*]}" | sed "s#$LAB_BIN/##" >"$name.command"
    [ "$1" != spdk ] || kill -CONT $spdk_pid
    before=$(busy)
    client=$({ TIMEFORMAT='%U %S'; time "${words[@]}" >"$name.json" 2>"$name.err"; } 2>&1) ||
        { cat "$name.err"; return 1; }
    [ "$1" != spdk ] || kill -STOP $spdk_pid
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@" $(($(busy) - before)) \
        "$(awk '{ printf "%.0f", ($1 + $2) * 1000000 }' <<<"$client")" >>"$out/cost.tsv"
}

# command_of PEER DISK WORKLOAD, which is called as in `cargo xtask bench`: randread-4k-qd1.
command_of() {
    local rw=${3%%-*} depth=${3##*qd} bs=${3#*-} port=4420 nqn=$NQN nsid=1
    bs=${bs%-*}
    [ "$1" = ours-kernel ] && port=$kernel_port nqn=$KERNEL_NQN
    [ "$2" = memory ] && nsid=2
    case $1 in
    ours-*)
        words=("$LAB_BIN/lariat" bench -a $address -s $port -n "$nqn" --fabric ib -q $HOST_NQN -I $HOST_ID
            --namespace-id $nsid --rw "$rw" --bs "$bs" --iodepth "$depth" --runtime "$seconds" --output-format json)
        ;;
    *)
        words=(fio --name=job --filename="$(cat "$WORK/$1.$2")" --rw="$rw" --bs="$bs" --iodepth="$depth"
            --runtime="$seconds" --ioengine=io_uring --direct=1 --time_based --size=256m --randrepeat=0 --norandommap
            --lat_percentiles=1 --clat_percentiles=0 --percentile_list=50:90:99:99.9 --output-format=json)
        ;;
    esac
}

peers=(nvmet lariatd ours-lariatd ours-kernel iscsi iser)
workloads=(randread-4k-qd1 randread-4k-qd32 randwrite-4k-qd1 randwrite-4k-qd32 read-128k-qd16 write-128k-qd16)
echo "$seconds" >"$out/seconds"

must 'networks with Soft-RoCE' networks 4500
must 'null disks' modprobe null_blk nr_devices=2 queue_mode=2 irqmode=0 bs=512 gb=1
must 'memory disks' modprobe brd rd_nr=2 rd_size=$((256 * 1024))
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
must 'nvmet-rdma' nvmet
must 'lariatd' lariatd
must 'modules of iSCSI' modprobe -a target_core_mod target_core_iblock iscsi_target_mod ib_isert iscsi_tcp ib_iser
must 'LIO over TCP' lio iscsi 3260 0
must 'LIO over iSER' lio iser 3261 1
mkdir -p /etc/iscsi /run/lock/iscsi
echo "InitiatorName=$iqn:host" >/etc/iscsi/initiatorname.iscsi
must 'iscsid' iscsid
must 'the host with nvmet' nvme_host nvmet $KERNEL_NQN $kernel_port
must 'the host with lariatd' nvme_host lariatd $NQN 4420
must 'the host with iSCSI' iscsi iscsi 3260 tcp
must 'the host with iSER' iscsi iser 3261 iser
if [ -n "${LAB_SPDK:-}" ]; then
    check 'SPDK, and the host with it' spdk && peers+=(spdk)
else
    say 'SPDK is not measured: no build given (--spdk DIR)'
fi
for peer in "${peers[@]}"; do
    # Ours have the others' disks, and so has iSER.
    case $peer in ours-* | iser) continue ;; esac
    [ "$peer" != spdk ] || kill -CONT $spdk_pid
    check "the memory disk of $peer is filled" fill "$peer"
    [ "$peer" != spdk ] || kill -STOP $spdk_pid
done
sleep 8
for ((round = 0; round < rounds; round++)); do
    for disk in null memory; do
        for workload in "${workloads[@]}"; do
            # There and back: what comes first is not always the same.
            for ((i = 0; i < ${#peers[@]}; i++)); do
                peer=${peers[round % 2 ? ${#peers[@]} - 1 - i : i]}
                check "round $round: $peer, $disk, $workload" measure "$peer" $disk "$workload" $round
            done
        done
    done
done
finish
