//! Commands against captured bytes, round trips, totality.

use proptest::prelude::*;

use super::*;
use crate::nvme::ids::{ControllerId, Lba, Numd, Qid, QueueSize};

/// A command from the hex of its 64 bytes.
fn from_hex(hex: &str) -> Command {
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    Command::from_bytes(bytes.as_slice().try_into().unwrap())
}

#[test]
fn captured_connect() {
    let raw = from_hex(concat!(
        "7f400100010000000000000000000000000000000000000000603a213c0b0000",
        "0004006e4e36be4f000000001f00000000000000000000000000000000000000",
    ));
    let parsed = FabricsCommand::parse(&raw).unwrap();
    assert_eq!(
        parsed,
        FabricsCommand::Connect {
            recfmt: 0,
            qid: Qid::ADMIN,
            sqsize: QueueSize::from_entries(32).unwrap(),
            cattr: 0,
            kato_ms: 0,
        }
    );
    let sgl = raw.sgl();
    assert_eq!(
        sgl,
        Sgl::Keyed { address: 0x0b3c_213a_6000, length: 1024, key: 0xbe36_4e6e, invalidate: true }
    );
    assert_eq!(parsed.to_command(CommandId(1)).with_sgl(sgl), raw);
}

#[test]
fn captured_property_commands() {
    let get = from_hex(concat!(
        "7f40020004000000000000000000000000000000000000000000000000000000",
        "0000000000000040010000000000000000000000000000000000000000000000",
    ));
    let parsed = FabricsCommand::parse(&get).unwrap();
    assert_eq!(parsed, FabricsCommand::PropertyGet { size: PropertySize::Eight, offset: 0 });
    assert_eq!(parsed.to_command(CommandId(2)), get);

    let set = from_hex(concat!(
        "7f40030000000000000000000000000000000000000000000000000000000000",
        "0000000000000040000000001400000001004600000000000000000000000000",
    ));
    let parsed = FabricsCommand::parse(&set).unwrap();
    assert_eq!(
        parsed,
        FabricsCommand::PropertySet { size: PropertySize::Four, offset: 0x14, value: 0x0046_0001 }
    );
    assert_eq!(parsed.to_command(CommandId(3)), set);
}

#[test]
fn captured_admin_commands() {
    let identify = from_hex(concat!(
        "064004000000000000000000000000000000000000000000",
        "0040f1d5981400000010000d45962c40",
        "010000000000000000000000000000000000000000000000",
    ));
    let parsed = AdminCommand::parse(&identify).unwrap();
    assert_eq!(parsed, AdminCommand::identify(Cns::CONTROLLER, Nsid::NONE));
    assert_eq!(parsed.to_command(CommandId(4)).with_sgl(identify.sgl()), identify);

    let set = from_hex(concat!(
        "0940050000000000000000000000000000000000000000000000000000000000",
        "0000000000000040070000000000000000000000000000000000000000000000",
    ));
    let parsed = AdminCommand::parse(&set).unwrap();
    assert_eq!(parsed, AdminCommand::set_feature(7, Nsid::NONE, 0));
    assert_eq!(parsed.to_command(CommandId(5)), set);
}

#[test]
fn log_page_length_spans_both_halves() {
    let command =
        AdminCommand::log_page(2, Nsid::ALL, Numd::from_zero_based(0x0001_0203), 0x1_0000_0004)
            .to_command(CommandId(0));
    assert_eq!(command.cdw10.get(), 0x0203_0002);
    assert_eq!(command.cdw11.get(), 0x0000_0001);
    assert_eq!(command.cdw12.get(), 4);
    assert_eq!(command.cdw13.get(), 1);
}

#[test]
fn refused_flags_become_a_status() {
    let mut fused = Command::flush(Nsid(1));
    fused.flags |= 1;
    let error = IoCommand::parse(&fused).unwrap_err();
    assert_eq!(error, CommandError::Fused(1));
    assert_eq!(Status::from(error), Status::INVALID_FIELD.with_dnr());

    let mut prp = Command::flush(Nsid(1));
    prp.flags = 0;
    assert_eq!(IoCommand::parse(&prp), Err(CommandError::NotSgl(0)));

    let mut log =
        AdminCommand::log_page(2, Nsid::ALL, Numd::from_zero_based(0), 0).to_command(CommandId(0));
    log.cdw12.set(2);
    assert_eq!(AdminCommand::parse(&log), Err(CommandError::LogOffsetUnaligned(2)));

    let mut property = FabricsCommand::PropertyGet { size: PropertySize::Four, offset: 0 }
        .to_command(CommandId(0));
    property.cdw10.set(3);
    assert_eq!(FabricsCommand::parse(&property), Err(CommandError::PropertySize(3)));
    let error = FabricsCommand::parse(&Command::flush(Nsid(1))).unwrap_err();
    assert_eq!(Status::from(error), Status::INVALID_OPCODE.with_dnr());
}

#[test]
fn counts_the_wire_cannot_express() {
    assert_eq!(Command::read(Nsid(1), Lba(0), 0), Err(EncodeError::Blocks(0)));
    assert_eq!(Command::write(Nsid(1), Lba(0), 65_537), Err(EncodeError::Blocks(65_537)));
    assert!(Command::read(Nsid(1), Lba(0), 65_536).is_ok_and(|c| c.cdw12.get() == 0xffff));
    for ranges in [0, 257] {
        let command = IoCommand::deallocate(Nsid(1), ranges).to_command(CommandId(0));
        assert_eq!(command, Err(EncodeError::Ranges(ranges)));
    }
}

fn admin() -> impl Strategy<Value = AdminCommand> {
    let identify =
        any::<(u8, u16, u16, u8, u8, u32)>().prop_map(|(cns, cntid, spec, csi, uuid, ns)| {
            AdminCommand::Identify {
                cns: Cns(cns),
                cntid: ControllerId(cntid),
                cns_specific: spec,
                csi: Csi(csi),
                uuid_index: uuid & 0x7f,
                nsid: Nsid(ns),
            }
        });
    let log = any::<((u8, u8, u16, u32, u64), (bool, u8, u8, u32, bool))>().prop_map(
        |((lid, lsp, lsi, numd, offset), (index_offset, csi, uuid, ns, rae))| {
            AdminCommand::GetLogPage {
                lid,
                lsp: lsp & 0x7f,
                lsi,
                numd: Numd::from_zero_based(numd),
                offset_bytes: if index_offset { offset } else { offset & !3 },
                index_offset,
                csi: Csi(csi),
                uuid_index: uuid & 0x7f,
                nsid: Nsid(ns),
                rae,
            }
        },
    );
    let get = any::<(u8, u8, u32, u32, u8)>().prop_map(|(fid, select, ns, cdw11, uuid)| {
        AdminCommand::GetFeatures {
            fid,
            select: FeatureSelect(select & 7),
            nsid: Nsid(ns),
            cdw11,
            uuid_index: uuid & 0x7f,
        }
    });
    let set = any::<(u8, bool, u32, [u32; 5])>().prop_map(
        |(fid, save, ns, [cdw11, cdw12, cdw13, cdw14, cdw15])| AdminCommand::SetFeatures {
            fid,
            save,
            nsid: Nsid(ns),
            cdw11,
            cdw12,
            cdw13,
            cdw14,
            cdw15,
        },
    );
    let abort = any::<(u16, u16)>()
        .prop_map(|(sqid, cid)| AdminCommand::Abort { sqid: Qid(sqid), cid: CommandId(cid) });
    prop_oneof![
        identify,
        log,
        get,
        set,
        abort,
        Just(AdminCommand::AsyncEventRequest),
        Just(AdminCommand::KeepAlive),
    ]
}

fn io() -> impl Strategy<Value = IoCommand> {
    let transfer =
        (any::<(u32, u64, bool, bool, u8, u8)>(), 1u32..=65_536, any::<(bool, u8, u16)>());
    let transfer = transfer.prop_map(
        |((ns, lba, fua, limited_retry, pr, hints), blocks, (write, dtype, dspec))| {
            let (nsid, slba, prinfo) = (Nsid(ns), Lba(lba), ProtectionAction(pr & 0xf));
            if write {
                IoCommand::Write {
                    nsid,
                    slba,
                    blocks,
                    fua,
                    limited_retry,
                    prinfo,
                    access_hints: hints,
                    directive_type: dtype & 0xf,
                    directive_specific: dspec,
                }
            } else {
                IoCommand::Read {
                    nsid,
                    slba,
                    blocks,
                    fua,
                    limited_retry,
                    prinfo,
                    access_hints: hints,
                }
            }
        },
    );
    let zeroes = (any::<(u32, u64, bool, bool, u8)>(), 1u32..=65_536).prop_map(
        |((ns, lba, deallocate, fua, pr), blocks)| IoCommand::WriteZeroes {
            nsid: Nsid(ns),
            slba: Lba(lba),
            blocks,
            deallocate,
            fua,
            prinfo: ProtectionAction(pr & 0xf),
        },
    );
    let dsm = (any::<(u32, bool, bool, bool)>(), 1u16..=256).prop_map(
        |((ns, deallocate, integral_read, integral_write), ranges)| IoCommand::DatasetManagement {
            nsid: Nsid(ns),
            ranges,
            deallocate,
            integral_read,
            integral_write,
        },
    );
    let flush = any::<u32>().prop_map(|ns| IoCommand::Flush { nsid: Nsid(ns) });
    prop_oneof![transfer, zeroes, dsm, flush]
}

fn fabrics() -> impl Strategy<Value = FabricsCommand> {
    let size = |eight| if eight { PropertySize::Eight } else { PropertySize::Four };
    prop_oneof![
        any::<(u16, u16, u16, u8, u32)>().prop_map(|(recfmt, qid, sqsize, cattr, kato_ms)| {
            FabricsCommand::Connect {
                recfmt,
                qid: Qid(qid),
                sqsize: QueueSize::from_zero_based(sqsize),
                cattr,
                kato_ms,
            }
        }),
        any::<(bool, u32)>().prop_map(move |(eight, offset)| FabricsCommand::PropertyGet {
            size: size(eight),
            offset
        }),
        any::<(bool, u32, u64)>().prop_map(move |(eight, offset, value)| {
            let value = if eight { value } else { value & 0xffff_ffff };
            FabricsCommand::PropertySet { size: size(eight), offset, value }
        }),
        any::<u16>().prop_map(|recfmt| FabricsCommand::Disconnect { recfmt }),
    ]
}

proptest! {
    #[test]
    fn raw_round_trip(bytes in any::<[[u8; 32]; 2]>()) {
        let bytes: [u8; 64] = bytemuck::cast(bytes);
        prop_assert_eq!(Command::from_bytes(&bytes).to_bytes(), bytes);
    }

    #[test]
    fn admin_round_trip(command in admin(), cid: u16) {
        let raw = command.to_command(CommandId(cid));
        prop_assert_eq!(raw.command_id(), CommandId(cid));
        prop_assert_eq!(AdminCommand::parse(&raw), Ok(command));
    }

    #[test]
    fn io_round_trip(command in io(), cid: u16) {
        let raw = command.to_command(CommandId(cid)).unwrap();
        prop_assert_eq!(IoCommand::parse(&raw), Ok(command));
    }

    #[test]
    fn fabrics_round_trip(command in fabrics(), cid: u16) {
        let raw = command.to_command(CommandId(cid));
        prop_assert_eq!(FabricsCommand::parse(&raw), Ok(command));
    }

    /// Whatever the bytes, a parse gives a value or an error, and what it
    /// understood survives being sent again.
    #[test]
    fn parsers_are_total(bytes in any::<[[u8; 32]; 2]>(), opcode in 0u8..0x20, sgl: bool) {
        let mut raw = Command::from_bytes(&bytemuck::cast(bytes));
        raw.opcode = if opcode == 0x1f { FABRICS_OPCODE } else { opcode };
        if sgl {
            raw.flags = PSDT_SGL;
        }
        let cid = raw.command_id();
        if let Ok(command) = AdminCommand::parse(&raw) {
            prop_assert_eq!(AdminCommand::parse(&command.to_command(cid)), Ok(command));
        }
        if let Ok(command) = IoCommand::parse(&raw) {
            let again = command.to_command(cid).unwrap();
            prop_assert_eq!(IoCommand::parse(&again), Ok(command));
        }
        if let Ok(command) = FabricsCommand::parse(&raw) {
            prop_assert_eq!(FabricsCommand::parse(&command.to_command(cid)), Ok(command));
        }
    }
}
