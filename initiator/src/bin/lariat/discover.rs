//! `lariat discover`: the discovery log, in nvme-cli's form. Calls `output` and the wire types; called
//! by `main`.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result};
use lariat::Nsid;
use lariat_wire::nvme::LogPage;
use lariat_wire::nvme::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, RdmaCms, RdmaProvider, RdmaQpType,
    SubsystemType, TransportType,
};
use serde_json::{Value, json};

use crate::connect_args::ConnectArgs;
use crate::failure::one_line;
use crate::output::{OutputFormat, print, print_json};

/// Connects to the discovery controller, asks, prints.
pub(crate) fn run(connect: &ConnectArgs, format: OutputFormat) -> Result<()> {
    let controller = connect.connect_discovery()?;
    let entries = controller.discovery_log()?;
    let header = controller.log_page(LogPage::DISCOVERY, Nsid::NONE, 0, 1024)?;
    let header = DiscoveryHeader::read_from(&header).context("the log's header is too short")?;
    let generation = header.generation.get();
    match format {
        OutputFormat::Normal => print(&human(generation, &entries))?,
        OutputFormat::Json => print_json(&json(generation, &entries))?,
    }
    if !entries.iter().any(|entry| entry.kind() == SubsystemType::NVM) {
        let _ = writeln!(std::io::stderr(), "lariat: {}", connect.nothing_shown()?);
    }
    Ok(())
}

/// An entry in words.
#[derive(Debug)]
struct Words {
    trtype: String,
    adrfam: String,
    subtype: String,
    treq: String,
    subnqn: String,
    traddr: String,
    trsvcid: String,
    rdma: Option<[String; 3]>,
}

fn named(name: Option<&str>, number: u8) -> String {
    name.map_or_else(|| format!("unknown ({number})"), str::to_owned)
}

fn words(entry: &DiscoveryEntry) -> Words {
    let trtype = match entry.transport() {
        TransportType::PCIE => Some("pcie"),
        TransportType::RDMA => Some("rdma"),
        TransportType::FIBRE_CHANNEL => Some("fc"),
        TransportType::TCP => Some("tcp"),
        TransportType::LOOP => Some("loop"),
        _ => None,
    };
    let adrfam = match entry.family() {
        AddressFamily::PCI => Some("pci"),
        AddressFamily::IPV4 => Some("ipv4"),
        AddressFamily::IPV6 => Some("ipv6"),
        AddressFamily::INFINIBAND => Some("infiniband"),
        AddressFamily::FIBRE_CHANNEL => Some("fibre-channel"),
        AddressFamily::LOOP => Some("loop"),
        _ => None,
    };
    let subtype = match entry.kind() {
        SubsystemType::REFERRAL => Some("discovery subsystem referral"),
        SubsystemType::NVM => Some("nvme subsystem"),
        SubsystemType::CURRENT_DISCOVERY => Some("current discovery subsystem"),
        _ => None,
    };
    let mut treq = match entry.treq & 3 {
        0 => "not specified",
        1 => "required",
        2 => "not required",
        _ => "reserved",
    }
    .to_owned();
    if entry.treq & 4 != 0 {
        treq.push_str(", sq flow control disable supported");
    }
    let subnqn = entry
        .subsystem_nqn()
        .map_or_else(|error| format!("({error})"), |nqn| one_line(nqn.as_str()));
    Words {
        trtype: named(trtype, entry.trtype),
        adrfam: named(adrfam, entry.adrfam),
        subtype: named(subtype, entry.subtype),
        treq,
        subnqn,
        traddr: one_line(&entry.address()),
        trsvcid: one_line(&entry.service()),
        rdma: (entry.transport() == TransportType::RDMA).then(|| rdma(entry)),
    }
}

fn rdma(entry: &DiscoveryEntry) -> [String; 3] {
    let provider = match RdmaProvider(entry.rdma_prtype) {
        RdmaProvider::NOT_SPECIFIED => Some("not specified"),
        RdmaProvider::INFINIBAND => Some("infiniband"),
        RdmaProvider::ROCE => Some("roce"),
        RdmaProvider::ROCE_V2 => Some("roce-v2"),
        RdmaProvider::IWARP => Some("iwarp"),
        _ => None,
    };
    let qptype = match RdmaQpType(entry.rdma_qptype) {
        RdmaQpType::CONNECTED => Some("connected"),
        RdmaQpType::DATAGRAM => Some("datagram"),
        _ => None,
    };
    let cms = match RdmaCms(entry.rdma_cms) {
        RdmaCms::RDMA_CM => Some("rdma-cm"),
        _ => None,
    };
    [
        named(provider, entry.rdma_prtype),
        named(qptype, entry.rdma_qptype),
        named(cms, entry.rdma_cms),
    ]
}

/// For people.
fn human(generation: u64, entries: &[DiscoveryEntry]) -> String {
    let mut text = format!(
        "Discovery Log Number of Records {}, Generation counter {generation}\n",
        entries.len()
    );
    for (index, entry) in entries.iter().enumerate() {
        let words = words(entry);
        let _ = write!(
            text,
            "=====Discovery Log Entry {index}======\n\
             trtype:  {}\nadrfam:  {}\nsubtype: {}\ntreq:    {}\nportid:  {}\ntrsvcid: {}\n\
             subnqn:  {}\ntraddr:  {}\neflags:  {}\n",
            words.trtype,
            words.adrfam,
            words.subtype,
            words.treq,
            entry.portid.get(),
            words.trsvcid,
            words.subnqn,
            words.traddr,
            flags(entry.eflags.get()),
        );
        if let Some([provider, qptype, cms]) = words.rdma {
            let _ = write!(
                text,
                "rdma_prtype: {provider}\nrdma_qptype: {qptype}\nrdma_cms:    {cms}\n\
                 rdma_pkey:   {:#06x}\n",
                entry.rdma_pkey.get()
            );
        }
    }
    text
}

fn flags(eflags: u16) -> String {
    let known = [
        (0, "duplicate discovery information"),
        (1, "explicit discovery connections"),
        (2, "no cdc connectivity"),
    ];
    let set: Vec<&str> =
        known.iter().filter(|(bit, _)| eflags >> bit & 1 != 0).map(|&(_, word)| word).collect();
    if set.is_empty() { "none".into() } else { set.join(", ") }
}

/// One object: `genctr` and `records`.
fn json(generation: u64, entries: &[DiscoveryEntry]) -> Value {
    let records: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let words = words(entry);
            let mut record = json!({
                "trtype": words.trtype,
                "adrfam": words.adrfam,
                "subtype": words.subtype,
                "treq": words.treq,
                "portid": entry.portid.get(),
                "trsvcid": words.trsvcid,
                "subnqn": words.subnqn,
                "traddr": words.traddr,
                "eflags": flags(entry.eflags.get()),
            });
            if let (Some([provider, qptype, cms]), Some(object)) =
                (words.rdma, record.as_object_mut())
            {
                object.insert("rdma_prtype".into(), provider.into());
                object.insert("rdma_qptype".into(), qptype.into());
                object.insert("rdma_cms".into(), cms.into());
                object.insert("rdma_pkey".into(), entry.rdma_pkey.get().into());
            }
            record
        })
        .collect();
    json!({"genctr": generation, "records": records})
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lariat_wire::nvme::Nqn;

    use super::*;

    fn entry() -> DiscoveryEntry {
        let nqn = Nqn::parse("nqn.2026-11.io.lariat:demo").unwrap();
        DiscoveryEntry::rdma(SubsystemType::NVM, &nqn, Ipv4Addr::new(10, 0, 0, 7).into(), 4420)
    }

    #[test]
    fn an_entry_reads_as_in_nvme_cli() {
        assert_eq!(
            human(3, &[entry()]),
            "Discovery Log Number of Records 1, Generation counter 3\n\
             =====Discovery Log Entry 0======\n\
             trtype:  rdma\n\
             adrfam:  ipv4\n\
             subtype: nvme subsystem\n\
             treq:    not required\n\
             portid:  0\n\
             trsvcid: 4420\n\
             subnqn:  nqn.2026-11.io.lariat:demo\n\
             traddr:  10.0.0.7\n\
             eflags:  none\n\
             rdma_prtype: roce-v2\n\
             rdma_qptype: connected\n\
             rdma_cms:    rdma-cm\n\
             rdma_pkey:   0x0000\n"
        );
        let json = json(3, &[entry()]);
        assert_eq!(json["genctr"], 3);
        assert_eq!(json["records"][0]["subnqn"], "nqn.2026-11.io.lariat:demo");
        assert_eq!(json["records"][0]["rdma_prtype"], "roce-v2");
    }

    #[test]
    fn unknown_values_are_shown_as_numbers() {
        let mut entry = entry();
        entry.trtype = 9;
        entry.subtype = 77;
        entry.eflags.set(3);
        let text = human(0, &[entry]);
        assert!(text.contains("trtype:  unknown (9)\n"), "{text}");
        assert!(text.contains("subtype: unknown (77)\n"), "{text}");
        assert!(!text.contains("rdma_"), "{text}");
        assert!(
            text.contains(
                "eflags:  duplicate discovery information, explicit discovery connections\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn no_entries() {
        assert_eq!(human(0, &[]), "Discovery Log Number of Records 0, Generation counter 0\n");
    }
}
