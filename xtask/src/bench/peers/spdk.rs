//! SPDK's NVMe/TCP target and its `spdk_nvme_perf`, from a build tree that the user names: no
//! registry has them. Its reactors never sleep, so the target is stopped between measurements.
//! Called by `run`.

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::{answers, free_port};
use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, Server, run_client};
use crate::bench::results::{Latency, Sample, System};
use crate::bench::workload::{MIXED_READ_PERCENT, Pattern, Workload};

const NQN: &str = "nqn.2026-11.io.lariat:spdk";

/// One target with a malloc disk.
#[derive(Default)]
pub(crate) struct Spdk {
    running: Option<(Server, u16)>,
}

impl Peer for Spdk {
    fn name(&self) -> &'static str {
        "spdk"
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        let Some(tree) = &ground.spdk else { bail!("no build given (--spdk DIR)") };
        let port = free_port()?;
        let config = ground.folder.join("spdk.json");
        std::fs::write(&config, configuration(port, ground.memory_mib).to_string())?;
        let program = tree.join("build/bin/nvmf_tgt");
        let mask = ground.placing.cores.map_or(1, |(server, _)| 1_u64 << server);
        let socket = ground.folder.join("spdk.sock");
        let line = Line::new(
            Vec::new(),
            &program.display().to_string(),
            [
                "-m".to_owned(),
                format!("{mask:#x}"),
                "--no-huge".into(),
                "-s".into(),
                (ground.memory_mib + 1024).to_string(),
                "-r".into(),
                socket.display().to_string(),
                "-c".into(),
                config.display().to_string(),
            ],
        );
        let mut server = Server::start(line, &ground.folder, "nvmf_tgt")?;
        server.wait_ready(|_| answers(port))?;
        let system = System {
            id: "spdk-memory".into(),
            name: "SPDK NVMe/TCP, malloc".into(),
            peer: self.name().into(),
            storage: "memory of the target".into(),
            server: server.show(),
        };
        server.pause(true)?;
        self.running = Some((server, port));
        Ok(vec![system])
    }

    fn lacks(&self, _: &str, _: &Workload) -> Option<String> {
        None
    }

    fn measure(
        &mut self,
        ground: &Ground,
        _: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let tree = ground.spdk.as_ref().context("no build given")?;
        let (server, port) = self.running.as_ref().context("nvmf_tgt is not running")?;
        let mask = ground.placing.cores.map_or(2, |(_, client)| 1_u64 << client);
        let mut arguments = vec![
            "-c".to_owned(),
            format!("{mask:#x}"),
            "--no-huge".into(),
            "-s".into(),
            "512".into(),
            "-q".into(),
            workload.depth.to_string(),
            "-P".into(),
            workload.connections.to_string(),
            "-o".into(),
            workload.block_bytes.to_string(),
            "-w".into(),
            workload.pattern.fio().into(),
            "-t".into(),
            seconds.to_string(),
            "-L".into(),
            "-r".into(),
            format!("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{NQN}"),
        ];
        if workload.pattern == Pattern::Mixed {
            arguments.extend(["-M".into(), MIXED_READ_PERCENT.to_string()]);
        }
        let program = tree.join("build/bin/spdk_nvme_perf").display().to_string();
        let line = Line::new(Vec::new(), &program, arguments);
        server.pause(false)?;
        let ran = run_client(&line, &ground.folder, seconds, Some(server.pid()));
        server.pause(true)?;
        let ran = ran?;
        ran.measured(|report| parse(report, workload))
    }

    fn idle_percent(&self, _: &str) -> Result<Option<f64>> {
        let Some((server, _)) = &self.running else { return Ok(None) };
        server.pause(false)?;
        let percent = server.idle_percent();
        server.pause(true)?;
        percent.map(Some)
    }

    fn stop(&mut self) -> Result<()> {
        let Some((server, _)) = self.running.take() else { return Ok(()) };
        server.pause(false)?;
        server.stop()
    }
}

/// nvmf_tgt's configuration: what its own RPC would be told.
fn configuration(port: u16, memory_mib: u64) -> serde_json::Value {
    let call =
        |method: &str, params: serde_json::Value| json!({"method": method, "params": params});
    json!({"subsystems": [
        {"subsystem": "bdev", "config": [call("bdev_malloc_create", json!({
            "name": "Malloc0", "block_size": 4096, "num_blocks": memory_mib * 256,
        }))]},
        {"subsystem": "nvmf", "config": [
            call("nvmf_create_transport", json!({"trtype": "TCP"})),
            call("nvmf_create_subsystem", json!({
                "nqn": NQN, "allow_any_host": true, "serial_number": "LARIATBENCH",
            })),
            call("nvmf_subsystem_add_ns", json!({
                "nqn": NQN, "namespace": {"bdev_name": "Malloc0"},
            })),
            call("nvmf_subsystem_add_listener", json!({
                "nqn": NQN,
                "listen_address": {
                    "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1",
                    "trsvcid": port.to_string(),
                },
            })),
        ]},
    ]})
}

/// What `spdk_nvme_perf -L` prints: a line `Total : IOPS MiB/s average min max` (microseconds), and
/// before it a summary of percentiles, `50.00000% : 12.345us`.
fn parse(text: &str, workload: &Workload) -> Result<Sample> {
    let total = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Total"))
        .context("spdk_nvme_perf printed no total")?;
    let figures: Vec<f64> = total.split([':', ' ']).filter_map(|word| word.parse().ok()).collect();
    let [iops, _, mean, _, max] = figures[..] else {
        bail!("spdk_nvme_perf's total is not understood: {total}");
    };
    let percentiles = text.lines().filter_map(|line| {
        let (percent, latency) = line.trim().split_once("% :")?;
        Some((percent.trim().parse().ok()?, latency.trim().strip_suffix("us")?.parse().ok()?))
    });
    Ok(Sample {
        iops,
        bytes_per_second: iops * f64::from(workload.block_bytes),
        latency_us: Latency {
            mean: Some(mean),
            mean_is_computed: false,
            percentiles: percentiles.collect(),
            max: Some(max),
        },
        client_cores: None,
        server_cores: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workload;

    #[test]
    fn the_perf_tools_summary_is_understood() {
        let text = "Latency(us)\nDevice Information : IOPS MiB/s Average min max\n\
                    Total                  :  76543.20     298.99      13.06       8.11     921.50\n\
                    Summary latency data for all\n  1.00000% :    9.100us\n 50.00000% :   12.800us\n\
                     99.90000% :   25.500us\n";
        let read = workload::list(false).remove(0);
        let sample = parse(text, &read).unwrap();
        assert!((sample.iops - 76543.2).abs() < 1e-6);
        assert_eq!(sample.latency_us.percentile(50.0), Some(12.8));
        assert_eq!(sample.latency_us.percentile(99.9), Some(25.5));
        assert_eq!(sample.latency_us.max, Some(921.5));
        assert!(parse("no", &read).is_err());
    }
}
