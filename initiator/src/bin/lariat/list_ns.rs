//! `lariat list-ns`: the active namespaces, in nvme-cli's form. Calls the library; called by `main`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use lariat::{NamespaceInfo, Nsid};
use lariat_wire::nvme::{Cns, NamespaceList};
use serde_json::{Value, json};

use crate::connect_args::SubsystemArgs;
use crate::output::{OutputFormat, print, print_json};

/// More lists than this are not read: 1,024 namespaces each.
const MAX_LISTS: usize = 1024;

/// Connects, asks, prints.
pub(crate) fn run(subsystem: &SubsystemArgs, format: OutputFormat) -> Result<()> {
    let controller = subsystem.connect(0, 1)?;
    let mut ids = Vec::new();
    let mut after = Nsid::NONE;
    for _ in 0..MAX_LISTS {
        let data = controller.identify_data(Cns::ACTIVE_NAMESPACE_LIST, after)?;
        let list = NamespaceList::read_from(&data).context("the list is too short")?;
        ids.extend(list.iter());
        match list.continue_after() {
            Some(last) if last > after => after = last,
            _ => break,
        }
    }
    match format {
        OutputFormat::Normal => print(&human(&ids)),
        OutputFormat::Json => print_json(&json(&ids, &controller.namespaces())),
    }
}

fn human(ids: &[Nsid]) -> String {
    ids.iter().enumerate().fold(String::new(), |mut text, (index, nsid)| {
        let _ = writeln!(text, "[{index:4}]:{:#x}", nsid.0);
        text
    })
}

/// With sizes where they are known.
fn json(ids: &[Nsid], known: &[NamespaceInfo]) -> Value {
    let list: Vec<Value> = ids
        .iter()
        .map(|&nsid| {
            let geometry = known.iter().map(|info| info.geometry).find(|one| one.nsid == nsid);
            json!({
                "nsid": nsid.0,
                "block_bytes": geometry.map(|geometry| geometry.block_bytes),
                "blocks": geometry.map(|geometry| geometry.blocks),
            })
        })
        .collect();
    json!({"nsid_list": list})
}

#[cfg(test)]
mod tests {
    use lariat_wire::nvme::IdentifyNamespace;

    use super::*;

    #[test]
    fn both_formats() {
        let ids = [Nsid(1), Nsid(31)];
        assert_eq!(human(&ids), "[   0]:0x1\n[   1]:0x1f\n");
        let info = NamespaceInfo::new(Nsid(31), IdentifyNamespace::new(8, 12)).unwrap();
        assert_eq!(
            json(&ids, &[info]),
            json!({"nsid_list": [
                {"nsid": 1, "block_bytes": null, "blocks": null},
                {"nsid": 31, "block_bytes": 4096, "blocks": 8},
            ]})
        );
    }
}
