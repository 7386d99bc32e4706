//! `lariat id-ns`: Identify Namespace data, field by field under the specification's names. Calls
//! `output` and the wire types; called by `main`.

use std::fmt::Write as _;

use anyhow::Result;
use lariat_wire::nvme::identify::IdentifyNamespace;
use serde_json::{Map, Value, json};

use crate::connect_args::NamespaceArgs;
use crate::output::{Fields, OutputFormat, print, print_json};
use crate::units::show_size;

const NSFEAT: &[(u32, &str)] = &[
    (0, "thin provisioning"),
    (1, "atomics"),
    (2, "deallocation errors"),
    (3, "identifiers are not reused"),
    (4, "preferred granularities"),
];
const NMIC: &[(u32, &str)] = &[(0, "shared")];
const NSATTR: &[(u32, &str)] = &[(0, "write-protected")];

/// Connects, asks, prints.
pub(crate) fn run(namespace: &NamespaceArgs, format: OutputFormat) -> Result<()> {
    let controller = namespace.subsystem.connect(0, 1)?;
    let info = namespace.namespace(&controller)?.info().clone();
    match format {
        OutputFormat::Normal => print(&human(&info.identify, info.uuid)),
        OutputFormat::Json => print_json(&json(&info.identify, info.uuid).into()),
    }
}

/// All fields but the formats.
fn fields(id: &IdentifyNamespace) -> Fields {
    // No size where the format is absurd or the size overflows.
    let blocks = |count: u64| {
        let size = id.block_bytes().and_then(|bytes| count.checked_mul(u64::from(bytes)));
        size.map_or_else(String::new, show_size)
    };
    let mut out = Fields::default();
    out.explained("nsze", id.nsze.get(), &blocks(id.nsze.get()));
    out.explained("ncap", id.ncap.get(), &blocks(id.ncap.get()));
    out.explained("nuse", id.nuse.get(), &blocks(id.nuse.get()));
    out.bits("nsfeat", id.nsfeat, NSFEAT);
    out.explained("nlbaf", id.nlbaf, &format!("formats 0 to {}", id.nlbaf));
    out.explained("flbas", id.flbas, &format!("format {}", id.format_index()));
    out.hex("mc", id.mc, "");
    out.hex("dpc", id.dpc, "");
    out.hex("dps", id.dps, "");
    out.bits("nmic", id.nmic, NMIC);
    out.hex("rescap", id.rescap, "");
    out.hex("fpi", id.fpi, "");
    out.hex("dlfeat", id.dlfeat, &deallocated(id.dlfeat));
    out.number("nawun", id.nawun.get());
    out.number("nawupf", id.nawupf.get());
    out.number("nacwu", id.nacwu.get());
    out.number("nabsn", id.nabsn.get());
    out.number("nabo", id.nabo.get());
    out.number("nabspf", id.nabspf.get());
    out.number("noiob", id.noiob.get());
    out.wide("nvmcap", id.nvmcap.get());
    out.number("npwg", id.npwg.get());
    out.number("npwa", id.npwa.get());
    out.number("npdg", id.npdg.get());
    out.number("npda", id.npda.get());
    out.number("nows", id.nows.get());
    out.number("mssrl", id.mssrl.get());
    out.number("mcl", id.mcl.get());
    out.number("msrc", id.msrc);
    out.number("nulbaf", id.nulbaf);
    out.number("anagrpid", id.anagrpid.get());
    out.bits("nsattr", id.nsattr, NSATTR);
    out.number("nvmsetid", id.nvmsetid.get());
    out.number("endgid", id.endgid.get());
    out.digits("nguid", &id.nguid);
    out.digits("eui64", &id.eui64);
    out
}

/// For people.
fn human(id: &IdentifyNamespace, uuid: Option<[u8; 16]>) -> String {
    let mut text = fields(id).human();
    if let Some(uuid) = uuid {
        let _ = writeln!(text, "{:<9} : {}", "uuid", uuid::Uuid::from_bytes(uuid));
    }
    for (index, format) in id.lbaf.iter().take(usize::from(id.nlbaf) + 1).enumerate() {
        let size = format
            .block_bytes()
            .map_or_else(|| "not available".into(), |bytes| show_size(u64::from(bytes)));
        let used = if index == id.format_index() { " (in use)" } else { "" };
        let _ = writeln!(
            text,
            "lbaf {index:>2}   : ms:{} lbads:{} rp:{:#x} ({size}){used}",
            format.ms.get(),
            format.lbads,
            format.rp
        );
    }
    text
}

/// One object, the formats as `lbafs`.
fn json(id: &IdentifyNamespace, uuid: Option<[u8; 16]>) -> Map<String, Value> {
    let mut object = fields(id).json();
    if let Some(uuid) = uuid {
        object.insert("uuid".into(), uuid::Uuid::from_bytes(uuid).to_string().into());
    }
    let formats: Vec<Value> = id
        .lbaf
        .iter()
        .take(usize::from(id.nlbaf) + 1)
        .map(|format| json!({"ms": format.ms.get(), "ds": format.lbads, "rp": format.rp}))
        .collect();
    object.insert("lbafs".into(), formats.into());
    object
}

fn deallocated(dlfeat: u8) -> String {
    let reads = match dlfeat & 7 {
        0 => "deallocated blocks read as anything",
        1 => "deallocated blocks read as zeros",
        2 => "deallocated blocks read as ones",
        _ => "reserved",
    };
    let zeroes = if dlfeat & 8 != 0 { ", write zeroes may deallocate" } else { "" };
    format!("{reads}{zeroes}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_formats_are_decoded() {
        let mut id = IdentifyNamespace::new(131_072, 12);
        id.nsfeat = 0x10;
        id.dlfeat = 9;
        id.nguid = [0xab; 16];
        let text = human(&id, Some([0x11; 16]));
        for line in [
            "nsze      : 131072 (512 MiB)\n",
            "nsfeat    : 0x10 (preferred granularities)\n",
            "dlfeat    : 0x9 (deallocated blocks read as zeros, write zeroes may deallocate)\n",
            "nguid     : abababababababababababababababab\n",
            "uuid      : 11111111-1111-1111-1111-111111111111\n",
            "lbaf  0   : ms:0 lbads:12 rp:0x0 (4 KiB) (in use)\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        let object = Value::Object(json(&id, None));
        assert_eq!(object["nsze"], 131_072);
        assert_eq!(object["lbafs"], json!([{"ms": 0, "ds": 12, "rp": 0}]));
        assert_eq!(object.get("uuid"), None);
    }

    #[test]
    fn absurd_data_is_shown_all_the_same() {
        let mut id = IdentifyNamespace::new(u64::MAX, 31);
        assert!(human(&id, None).contains("nsze      : 18446744073709551615\n"));
        id.nlbaf = 255;
        id.flbas = 0xff;
        assert!(human(&id, None).contains("nsze      : 18446744073709551615\n"));
    }
}
