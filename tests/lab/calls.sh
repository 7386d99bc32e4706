# What a request costs with the kernel's host on one Soft-RoCE device, with the kernel's target and with
# lariatd: rates, processor time, system calls and sleeps. And where the time goes: with a steady clock to the
# microsecond, otherwise by profiles of the guest, in LAB_OUT/calls.
# limit: 1800
# run: by name
. "$(dirname "$0")/lib.sh"

# Another lariatd to compare with may stand in LAB_OUT/other.
seconds=2 rounds=3
out=$LAB_OUT/calls
rm -rf "$out" && mkdir -p "$out"
address=10.9.0.1

nvmet() {
    local root=/sys/kernel/config/nvmet
    local subsystem=$root/subsystems/$KERNEL_NQN port=$root/ports/9
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    modprobe null_blk nr_devices=1 queue_mode=2 irqmode=0 bs=512 gb=1 &&
        modprobe brd rd_nr=1 rd_size=$((64 * 1024)) &&
        mkdir "$subsystem" && echo 1 >"$subsystem/attr_allow_any_host" &&
        mkdir "$subsystem/namespaces/1" && echo /dev/nullb0 >"$subsystem/namespaces/1/device_path" &&
        echo 1 >"$subsystem/namespaces/1/enable" &&
        mkdir "$subsystem/namespaces/2" && echo /dev/ram0 >"$subsystem/namespaces/2/device_path" &&
        echo 1 >"$subsystem/namespaces/2/enable" && mkdir "$port" && echo rdma >"$port/addr_trtype" &&
        echo ipv4 >"$port/addr_adrfam" && echo $address >"$port/addr_traddr" &&
        echo 4422 >"$port/addr_trsvcid" && ln -s "$subsystem" "$port/subsystems/"
}

# lariatd NAME FOLDER PORT
lariatd() {
    cat >"$WORK/$1.toml" <<TOML
[[listener]]
address = "$address"
port = $3
fabric = "ib"
[[subsystem]]
nqn = "$NQN-$1"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
backend = { type = "null", size = "64MiB" }
[[subsystem.namespace]]
nsid = 2
backend = { type = "memory", size = "64MiB" }
[target]
reactors = 1
TOML
    lariatd_log=$WORK/lariatd-$1.log
    "$2/lariatd" --config "$WORK/$1.toml" >"$lariatd_log" 2>&1 &
    pids[$1]=$!
    until_true 30 grep -qx ready "$lariatd_log"
}
declare -A pids=() nqns=()

connect() {
    nvme connect -t rdma -a $address -s "$2" -n "$1" -q $HOST_NQN -I $HOST_ID --nr-io-queues=2 &&
        until_true 20 device_ready "$1" 1 && until_true 20 device_ready "$1" 2
}

# disk PEER null|memory: its device.
disk() { device "${nqns[$1]}" "$([ "$2" = memory ] && echo 2)"; }

# job DEVICE RW DEPTH: fio; prints requests, IOPS, latency: mean and median in us.
job() {
    fio --name=job --filename="$1" --rw="$2" --bs=4k --iodepth="$3" --runtime="$seconds" --ioengine=io_uring \
        --direct=1 --time_based --size=64m --randrepeat=0 --norandommap --output-format=json >"$WORK/fio.json" 2>/dev/null
    awk '/^ *"total_ios"/ { gsub(/[^0-9]/, "", $3); if ($3 > n) n = $3 }
        /^ *"iops" / { v = $3 + 0; if (v > iops) iops = v }
        /"lat_ns"/ { lat = 1 } lat && /"mean"/ { if ($3 / 1000 > mean) mean = $3 / 1000; lat = 0 }
        /"50.000000"/ { if ($3 / 1000 > half) half = $3 / 1000 }
        END { printf "%d %d %d %d\n", n, iops, mean, half }' "$WORK/fio.json"
}
export -f job
export WORK seconds
thread() { local t; for t in /proc/"$1"/task/*; do grep -q reactor "$t/comm" && basename "$t" && return; done; }
calls=(write read ioctl io_uring_enter sched_yield epoll_wait clock_gettime)

# spent: processor time by kinds of threads, in us: KIND TIME. (Threads come and go while they are read.)
spent() {
    grep -sH . /proc/[0-9]*/task/[0-9]*/comm /proc/[0-9]*/task/[0-9]*/schedstat | sed 's,/\([a-z]*\):, \1 ,' |
        awk '$2 == "comm" { comm[$1] = $3 }
            $2 == "schedstat" {
                kind = ""
                if (comm[$1] ~ /^kworker\/u/) kind = "workers-without-a-processor,Soft-RoCE"
                else if (comm[$1] ~ /^kworker/) kind = "workers-of-a-processor,completions-of-nvmet-rdma"
                else if (comm[$1] ~ /^ksoftirqd/) kind = "soft-interrupts,completions-of-the-host"
                else if (comm[$1] ~ /^reactor/) kind = "reactor"
                if (kind) sum[kind] += $3
            }
            END { for (kind in sum) printf "%s %.0f\n", kind, sum[kind] / 1000 }' | sort
}

# measure NAME DISK RW DEPTH: rate, and whose processor time it was, alike for all peers.
measure() {
    local d requests at busy
    d=$(disk "$1" "$2")
    spent >"$WORK/before"
    at=$(busy)
    requests=$(job "$d" "$3" "$4")
    busy=$(($(busy) - at))
    spent >"$WORK/after"
    echo "$1 $2 $3 $4: $requests (requests, IOPS, mean and median us), guest $((busy / ${requests%% *})) us per request"
    join "$WORK/before" "$WORK/after" | awk -v n="${requests%% *}" -v busy=$busy '
        { time = $3 - $2; left = left ? left - time : busy - time; printf "    %7.1f us per request: %s\n", time / n, $1 }
        END { printf "    %7.1f us per request: the rest, fio for the most part\n", left / n }'
}

# count NAME DISK RW DEPTH: system calls of the reactor. (To count is dear, and for fio too.)
count() {
    local d requests events=''
    d=$(disk "$1" "$2")
    for call in "${calls[@]}"; do events+="${events:+,}syscalls:sys_enter_$call"; done
    perf stat -x, -o "$WORK/stat" -e "$events,context-switches" -t "$(thread "${pids[$1]}")" &
    stat=$!
    sleep 0.5
    requests=$(job "$d" "$3" "$4")
    kill -INT $stat
    wait $stat
    awk -F, -v n="${requests%% *}" '$1 ~ /^[0-9]+$/ { printf "    %-32s %6.2f per request\n", $3, $1 / n }' "$WORK/stat"
}

# fill NAME: the memory disk is written from end to end, so that nobody is measured at getting memory. (Then lariatd
# asks for huge pages, once.)
fill() {
    fio --name=fill --filename="$(disk "$1" memory)" --rw=write --bs=128k --iodepth=16 --size=64m \
        --ioengine=io_uring --direct=1
}

# profile NAME DISK RW DEPTH: of fio's time and a second around it. (perf takes seconds to start.)
profile() {
    local name=$1-$2-$3-$4 d
    d=$(disk "$1" "$2")
    perf record -q -a -e cpu-clock -F 500 -o "$WORK/perf.data" -- bash -c 'job "$@"' job "$d" "$3" "$4" 2>/dev/null
    perf report -i "$WORK/perf.data" --sort comm --stdio 2>/dev/null | grep -v '^#' | grep . | head -n 12
    perf report -i "$WORK/perf.data" --sort comm,dso,symbol --stdio 2>/dev/null | grep -v '^#' | grep . >"$out/perf-$name"
    head -n 30 "$out/perf-$name"
}

# shares NAME DISK RW DEPTH: with a steady clock one processor runs at a time, and each instruction moves the clock
# on, so that what lies between two events of the trace was spent by who was running. Us per request. (But for
# a turn of the other processor that has no event in it: it counts for whoever was seen last.)
shares() {
    local trace=/sys/kernel/tracing event d
    mountpoint -q $trace || mount -t tracefs none $trace || return
    echo 0 >$trace/tracing_on && echo 20000 >$trace/buffer_size_kb && echo >$trace/trace || return
    for event in sched/sched_switch raw_syscalls; do echo 1 >"$trace/events/$event/enable"; done
    d=$(disk "$1" "$2")
    job "$d" "$3" "$4" >"$WORK/job" &
    # fio takes a second to start, and what a shell does costs time, too.
    sleep 2
    echo 1 >$trace/tracing_on
    sleep 0.2
    echo 0 >$trace/tracing_on
    wait %%
    cp $trace/trace "$out/trace-$1-$2-$3-$4"
    awk '!/^#/ && match($0, / \[[0-9]+\] /) {
            who = substr($0, 1, RSTART - 1)
            sub(/^ */, "", who)
            pid = who
            sub(/.*-/, "", pid)
            rest = substr($0, RSTART + RLENGTH)
            split(rest, part, " ")
            at = part[2] * 1000000
            event = part[3]
            if (who ~ /^kworker\/u/) kind = "workers without a processor (Soft-RoCE)"
            else if (who ~ /^kworker/) kind = "workers of a processor (completions of nvmet-rdma)"
            else if (who ~ /^reactor/) kind = "lariatd, " (pid in call ? "system call " call[pid] : "user")
            else if (who ~ /^fio/) kind = "fio, " (pid in call ? "kernel" : "user")
            else if (who ~ /^ksoftirqd/) kind = "soft interrupts (completions of the host)"
            else if (who ~ /^<idle>/) kind = "idle, and waking from it"
            else kind = "other"
            if (last) spent[kind] += at - last
            else first = at
            last = at
            if (event == "sys_enter:") call[pid] = part[5]
            if (event == "sys_exit:") {
                delete call[pid]
                if (who ~ /^fio/ && part[5] == 426 && part[7] > 0) requests += part[7]
            }
            if (event == "sched_switch:") switches++
        }
        END {
            if (!requests) exit 1
            printf "    %8.1f us per request (%d requests), %.1f switches\n", (last - first) / requests, requests,
                switches / requests
            for (kind in spent) printf "    %8.1f %s\n", spent[kind] / requests, kind
        }' "$out/trace-$1-$2-$3-$4" >"$WORK/shares" && sort -k1,1nr "$WORK/shares"
}

must 'perf is there' command -v perf
must 'networks with Soft-RoCE' networks 4500
echo "clock source: $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
must 'nvmet' nvmet
nqns[nvmet]=$KERNEL_NQN pids[nvmet]=0
peers=(nvmet lariatd)
must 'lariatd' lariatd lariatd "$LAB_BIN" 4420
nqns[lariatd]=$NQN-lariatd
if [ -x "$LAB_OUT/other/lariatd" ]; then
    must 'another lariatd' lariatd other "$LAB_OUT/other" 4421
    nqns[other]=$NQN-other
    peers+=(other)
    must 'its host' connect "${nqns[other]}" 4421
fi
must 'the host with nvmet' connect "$KERNEL_NQN" 4422
must 'the host with lariatd' connect "${nqns[lariatd]}" 4420
for peer in "${peers[@]}"; do check "the memory disk of $peer is filled" fill "$peer"; done
sleep 5
loads=('null randread 1' 'null randwrite 1' 'null randread 32' 'null randwrite 32' 'memory randread 32' 'memory randwrite 32')
for load in "${loads[@]}"; do
    for ((round = 0; round < rounds; round++)); do
        for peer in "${peers[@]}"; do
            # shellcheck disable=SC2086 # three words
            check "round $round, $peer, $load" measure "$peer" $load
            cat "$WORK/output"
        done
    done
done
# The kernel rewrites its scheduler when the first event of such a kind comes and when the last has gone, and where
# it is emulated a processor that runs there may die of that (int3 in __schedule): one event stays.
sleep infinity &
perf stat -o /dev/null -e context-switches -t $! >/dev/null 2>&1 &
sleep 2
# With a steady clock the timer that takes the samples fires in the idle loop alone.
look=profile seconds=5
[ "$LAB_STEADY" = 1 ] && look=shares seconds=3
for load in "${loads[@]}"; do
    # shellcheck disable=SC2086 # three words
    check "system calls of lariatd, $load" count lariatd $load
    cat "$WORK/output"
    # A profile takes a minute.
    [ "$look ${load##* }" != 'profile 1' ] || continue
    for peer in "${peers[@]}"; do
        # shellcheck disable=SC2086 # three words
        check "$look: $peer, $load" $look "$peer" $load
        cat "$WORK/output"
    done
done
finish
