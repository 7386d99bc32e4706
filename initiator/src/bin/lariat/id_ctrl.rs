//! `lariat id-ctrl`: Identify Controller data, field by field under the specification's names. Calls
//! `output` and the wire types; called by `main`.

use anyhow::Result;
use lariat_wire::nvme::identify::{IdentifyController, TransferLimit};

use crate::connect_args::SubsystemArgs;
use crate::output::{Fields, OutputFormat, print, print_json};
use crate::units::show_size;

const CMIC: &[(u32, &str)] =
    &[(0, "multi-port"), (1, "multi-controller"), (2, "SR-IOV"), (3, "ANA")];
const OAES: &[(u32, &str)] = &[
    (8, "namespace attributes"),
    (9, "firmware activation"),
    (11, "ANA change"),
    (31, "discovery log change"),
];
const CTRATT: &[(u32, &str)] = &[(0, "128-bit host identifier"), (6, "traffic based keep alive")];
const OACS: &[(u32, &str)] = &[
    (0, "security"),
    (1, "format"),
    (2, "firmware"),
    (3, "namespace management"),
    (4, "device self-test"),
    (5, "directives"),
    (6, "NVMe-MI"),
    (7, "virtualization"),
    (8, "doorbell buffer"),
    (9, "LBA status"),
];
const LPA: &[(u32, &str)] = &[
    (0, "SMART per namespace"),
    (1, "commands and effects"),
    (2, "extended data"),
    (3, "telemetry"),
    (4, "persistent events"),
];
const ONCS: &[(u32, &str)] = &[
    (0, "compare"),
    (1, "write uncorrectable"),
    (2, "dataset management"),
    (3, "write zeroes"),
    (4, "save and select"),
    (5, "reservations"),
    (6, "timestamp"),
    (7, "verify"),
    (8, "copy"),
];
const FUSES: &[(u32, &str)] = &[(0, "compare and write")];
const VWC: &[(u32, &str)] = &[(0, "volatile write cache")];
const FCATT: &[(u32, &str)] = &[(0, "static controllers")];
const OFCS: &[(u32, &str)] = &[(0, "disconnect")];

/// Connects, asks, prints.
pub(crate) fn run(subsystem: &SubsystemArgs, format: OutputFormat) -> Result<()> {
    let controller = subsystem.connect(0, 1)?;
    let page_bytes = controller.info().map_or(4096, |info| info.capabilities.min_page_bytes());
    let fields = fields(&controller.identify()?, page_bytes);
    match format {
        OutputFormat::Normal => print(&fields.human()),
        OutputFormat::Json => print_json(&fields.json().into()),
    }
}

/// All fields; `page_bytes` is CAP.MPSMIN, the unit of MDTS.
fn fields(id: &IdentifyController, page_bytes: u64) -> Fields {
    let mut out = Fields::default();
    out.hex("vid", id.vid.get(), "");
    out.hex("ssvid", id.ssvid.get(), "");
    out.text("sn", &id.serial());
    out.text("mn", &id.model());
    out.text("fr", &id.firmware());
    let subnqn =
        id.subsystem_nqn().map_or_else(|error| format!("({error})"), |nqn| nqn.to_string());
    out.text("subnqn", &subnqn);
    out.hex("ver", id.ver.get(), &version(id));
    out.explained("mdts", id.mdts, &transfer_limit(id.transfer_limit(), page_bytes));
    out.hex("cntlid", id.cntlid.get(), "");
    out.explained("cntrltype", id.cntrltype, &id.controller_type().to_string());
    out.number("rab", id.rab);
    // The identifier is stored least significant byte first.
    let [a, b, c] = id.ieee;
    out.digits("ieee", &[c, b, a]);
    out.bits("cmic", id.cmic, CMIC);
    out.number("rtd3r", id.rtd3r.get());
    out.number("rtd3e", id.rtd3e.get());
    out.bits("oaes", id.oaes.get(), OAES);
    out.bits("ctratt", id.ctratt.get(), CTRATT);
    out.hex("rrls", id.rrls.get(), "");
    out.digits("fguid", &id.fguid);
    for (name, delay) in ["crdt1", "crdt2", "crdt3"].into_iter().zip(id.crdt) {
        out.number(name, delay.get());
    }
    out.bits("oacs", id.oacs.get(), OACS);
    out.explained("acl", id.acl, &format!("{} aborts", u32::from(id.acl) + 1));
    out.explained("aerl", id.aerl, &format!("{} event requests", u32::from(id.aerl) + 1));
    out.hex("frmw", id.frmw, "");
    out.bits("lpa", id.lpa, LPA);
    out.explained("elpe", id.elpe, &format!("{} entries", u32::from(id.elpe) + 1));
    out.explained("npss", id.npss, &format!("{} power states", u32::from(id.npss) + 1));
    out.hex("avscc", id.avscc, "");
    out.hex("apsta", id.apsta, "");
    out.number("wctemp", id.wctemp.get());
    out.number("cctemp", id.cctemp.get());
    out.number("mtfa", id.mtfa.get());
    out.number("hmpre", id.hmpre.get());
    out.number("hmmin", id.hmmin.get());
    out.wide("tnvmcap", id.tnvmcap.get());
    out.wide("unvmcap", id.unvmcap.get());
    out.hex("rpmbs", id.rpmbs.get(), "");
    out.number("edstt", id.edstt.get());
    out.hex("dsto", id.dsto, "");
    out.number("fwug", id.fwug);
    out.explained("kas", id.kas.get(), &keep_alive(id));
    out.hex("hctma", id.hctma.get(), "");
    out.number("mntmt", id.mntmt.get());
    out.number("mxtmt", id.mxtmt.get());
    out.hex("sanicap", id.sanicap.get(), "");
    out.number("hmminds", id.hmminds.get());
    out.number("hmmaxd", id.hmmaxd.get());
    out.number("nsetidmax", id.nsetidmax.get());
    out.number("endgidmax", id.endgidmax.get());
    out.number("anatt", id.anatt);
    out.hex("anacap", id.anacap, "");
    out.number("anagrpmax", id.anagrpmax.get());
    out.number("nanagrpid", id.nanagrpid.get());
    out.number("pels", id.pels.get());
    out.number("domainid", id.domainid.get());
    out.wide("megcap", id.megcap.get());
    out.hex("sqes", id.sqes, &entry_sizes(id.sqes));
    out.hex("cqes", id.cqes, &entry_sizes(id.cqes));
    out.number("maxcmd", id.maxcmd.get());
    out.number("nn", id.nn.get());
    out.bits("oncs", id.oncs.get(), ONCS);
    out.bits("fuses", id.fuses.get(), FUSES);
    out.hex("fna", id.fna, "");
    out.bits("vwc", id.vwc, VWC);
    out.number("awun", id.awun.get());
    out.number("awupf", id.awupf.get());
    out.number("icsvscc", id.icsvscc);
    out.number("nwpc", id.nwpc);
    out.number("acwu", id.acwu.get());
    out.hex("ocfs", id.cdfs.get(), "");
    out.hex("sgls", id.sgls.get(), &sgl_support(id.sgls.get()));
    out.number("mnan", id.mnan.get());
    out.wide("maxdna", id.maxdna.get());
    out.number("maxcna", id.maxcna.get());
    let capsule = format!(
        "{} B capsules, {} B of data in them",
        id.io_capsule_bytes(),
        id.in_capsule_data_bytes()
    );
    out.explained("ioccsz", id.ioccsz.get(), &capsule);
    out.number("iorcsz", id.iorcsz.get());
    out.number("icdoff", id.icdoff.get());
    out.bits("fcatt", id.fcatt, FCATT);
    out.number("msdbd", id.msdbd);
    out.bits("ofcs", id.ofcs.get(), OFCS);
    out.number("dctype", id.dctype);
    out
}

fn version(id: &IdentifyController) -> String {
    let [tertiary, minor, major_low, major_high] = id.ver.get().to_le_bytes();
    let major = u16::from_le_bytes([major_low, major_high]);
    if tertiary == 0 { format!("{major}.{minor}") } else { format!("{major}.{minor}.{tertiary}") }
}

fn transfer_limit(limit: TransferLimit, page_bytes: u64) -> String {
    limit.bytes(page_bytes).map_or_else(|| "no limit".into(), show_size)
}

fn keep_alive(id: &IdentifyController) -> String {
    match id.keep_alive_granularity_ms() {
        0 => "not supported".into(),
        granularity => format!("steps of {granularity} ms"),
    }
}

fn entry_sizes(exponents: u8) -> String {
    let bytes = |exponent: u8| 1u32 << (exponent & 0xf);
    format!("{} to {} B", bytes(exponents), bytes(exponents >> 4))
}

fn sgl_support(bits: u32) -> String {
    let mut words = vec![match bits & 3 {
        0 => "not supported",
        1 => "any alignment",
        2 => "dword aligned",
        _ => "reserved",
    }];
    for (bit, word) in [(2, "keyed"), (16, "bit bucket"), (20, "offsets"), (21, "transport data")] {
        if bits >> bit & 1 != 0 {
            words.push(word);
        }
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use lariat_wire::nvme::identify::SglSupport;
    use lariat_wire::nvme::{Nqn, Version};

    use super::*;

    fn sample() -> IdentifyController {
        let mut id = IdentifyController::default();
        id.set_product("SERIAL", "Lariat", "0.1");
        id.ver.set(Version::V2_1.0);
        id.mdts = 5;
        id.cntrltype = 1;
        id.cmic = 3;
        id.sqes = 0x66;
        id.sgls.set(SglSupport::RDMA);
        id.set_in_capsule_data(4096);
        id.subnqn = Nqn::parse("nqn.2026-11.io.lariat:demo").unwrap().to_wire_field();
        id
    }

    #[test]
    fn bits_are_decoded() {
        let text = fields(&sample(), 4096).human();
        let begin = "vid       : 0x0\n\
                     ssvid     : 0x0\n\
                     sn        : SERIAL\n\
                     mn        : Lariat\n\
                     fr        : 0.1\n\
                     subnqn    : nqn.2026-11.io.lariat:demo\n\
                     ver       : 0x20100 (2.1)\n\
                     mdts      : 5 (128 KiB)\n";
        assert!(text.starts_with(begin), "{text}");
        for line in [
            "cmic      : 0x3 (multi-port, multi-controller)\n",
            "sqes      : 0x66 (64 to 64 B)\n",
            "sgls      : 0x100005 (any alignment, keyed, offsets)\n",
            "ioccsz    : 260 (4160 B capsules, 4096 B of data in them)\n",
            "kas       : 0 (not supported)\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn json_has_plain_numbers() {
        let json = Value::Object(fields(&sample(), 4096).json());
        assert_eq!(json["mdts"], 5);
        assert_eq!(json["ver"], 0x20100);
        assert_eq!(json["sn"], "SERIAL");
        assert_eq!(json["subnqn"], "nqn.2026-11.io.lariat:demo");
    }
}
