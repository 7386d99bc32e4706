//! I/O commands at and beyond every boundary.

use lariat_wire::nvme::{DsmRange, FeatureId, IoCommand, Lba, LogPage, Numd, ProtectionAction};
use proptest::prelude::*;

use super::*;
use crate::nvme::admission::volatile_backends;
use crate::storage::BlockRange;

fn admit(io: &IoAttachment, command: IoCommand) -> Result<IoPlan, Status> {
    io.admit(&command.to_command(CommandId(5)).unwrap())
}

#[test]
fn plain_commands_become_plans() {
    let (_admin, io) = Target::new().ready();
    let backend = BackendId(1);
    let read = admit(&io, IoCommand::read(Nsid(1), Lba(10), 8)).unwrap();
    assert_eq!(read, IoPlan::Read { backend, start: 10, blocks: 8, bytes: 4096, flush: false });
    assert_eq!(read.transfer(), Transfer::ToHost(4096));
    let write = admit(&io, IoCommand::write(Nsid(2), Lba(499), 1)).unwrap();
    let backend = BackendId(2);
    assert_eq!(write, IoPlan::Write { backend, start: 499, blocks: 1, bytes: 4096, fua: false });
    assert_eq!(write.transfer(), Transfer::FromHost(4096));
    let zeroes = admit(&io, IoCommand::write_zeroes(Nsid(2), Lba(0), 500, true)).unwrap();
    let range = BlockRange { start: 0, blocks: 500 };
    assert_eq!(zeroes, IoPlan::WriteZeroes { backend, range, deallocate: true, fua: false });
    assert_eq!(zeroes.transfer(), Transfer::None);
    let trim = admit(&io, IoCommand::deallocate(Nsid(2), 256)).unwrap();
    assert_eq!(trim, IoPlan::Deallocate { backend, bytes: 4096 });
    assert_eq!(trim.transfer(), Transfer::FromHost(4096));
}

#[test]
fn flushes_reach_what_has_a_cache() {
    let (_admin, io) = Target::new().ready();
    let flush = |nsid| admit(&io, IoCommand::Flush { nsid });
    assert_eq!(flush(Nsid(1)), Ok(IoPlan::Flush { backend: BackendId(1) }));
    assert_eq!(flush(Nsid(4)), Ok(IoPlan::Nothing), "there is no cache to flush");
    assert_eq!(flush(Nsid::ALL), Ok(IoPlan::FlushAll));
    assert!(volatile_backends(io.subsystem()).eq([BackendId(1), BackendId(2)]));
    assert_refused(flush(Nsid::NONE), Status::INVALID_NAMESPACE_OR_FORMAT);
}

#[test]
fn namespaces_that_are_not_there() {
    let (_admin, io) = Target::new().ready();
    for command in [IoCommand::read as fn(_, _, _) -> _, IoCommand::write] {
        for nsid in [Nsid::NONE, Nsid(5), Nsid(0xffff_fffe), Nsid::ALL] {
            assert_refused(
                admit(&io, command(nsid, Lba(0), 1)),
                Status::INVALID_NAMESPACE_OR_FORMAT,
            );
        }
        // 3 could be one, but is not.
        assert_refused(admit(&io, command(Nsid(3), Lba(0), 1)), Status::INVALID_FIELD);
    }
}

#[test]
fn the_transfer_limit_counts_bytes_not_blocks() {
    let (_admin, io) = Target::new().ready();
    // 128 KiB are 256 blocks of 512 bytes and 32 of 4096.
    for (nsid, most) in [(1, 256), (2, 32)] {
        let nsid = Nsid(nsid);
        let plan = admit(&io, IoCommand::read(nsid, Lba(0), most)).unwrap();
        assert_eq!(plan.transfer().bytes(), 128 << 10);
        let too_many = IoCommand::read(nsid, Lba(0), most + 1);
        assert_refused(admit(&io, too_many), Status::INVALID_FIELD);
        let too_many = IoCommand::write(nsid, Lba(0), 65_536);
        assert_refused(admit(&io, too_many), Status::INVALID_FIELD);
    }
}

#[test]
fn flags_and_fields_that_cannot_be_served() {
    let (_admin, io) = Target::new().ready();
    let good = Command::read(Nsid(1), Lba(0), 1).unwrap();
    assert!(io.admit(&good).is_ok());
    for flags in [0x41, 0x42, 0x43, 0x00, 0x80, 0xc0, 0x44] {
        let command = Command { flags, ..good };
        assert_refused(io.admit(&command), Status::INVALID_FIELD);
    }
    // Compare, Write Uncorrectable, Verify, reservations, Copy, vendor commands.
    for opcode in [0x05, 0x04, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x19, 0x80, 0xff] {
        let command = Command { opcode, ..good };
        assert_refused(io.admit(&command), Status::INVALID_OPCODE);
    }
    for prinfo in [1, 8, 0xf] {
        let mut command = IoCommand::read(Nsid(1), Lba(0), 1);
        if let IoCommand::Read { prinfo: field, .. } = &mut command {
            *field = ProtectionAction(prinfo);
        }
        assert_refused(admit(&io, command), Status::INVALID_PROTECTION_INFORMATION);
    }
}

#[test]
fn a_read_only_namespace_can_be_read() {
    let (_admin, io) = Target::new().ready();
    let nsid = Nsid(4);
    assert!(admit(&io, IoCommand::read(nsid, Lba(63), 1)).is_ok());
    for command in [
        IoCommand::write(nsid, Lba(0), 1),
        IoCommand::write_zeroes(nsid, Lba(0), 1, false),
        IoCommand::deallocate(nsid, 1),
    ] {
        assert_refused(admit(&io, command), Status::NAMESPACE_WRITE_PROTECTED);
    }
}

#[test]
fn hints_are_taken_without_a_look_at_their_data() {
    let (_admin, io) = Target::new().ready();
    let hint = IoCommand::DatasetManagement {
        nsid: Nsid(1),
        ranges: 3,
        deallocate: false,
        integral_read: true,
        integral_write: true,
    };
    assert_eq!(admit(&io, hint), Ok(IoPlan::Nothing));
}

#[test]
fn without_the_write_cache_every_write_is_forced() {
    let target = Target::new();
    let (mut admin, io) = target.ready();
    let set =
        |enabled| AdminCommand::set_feature(FeatureId::VOLATILE_WRITE_CACHE.0, Nsid::NONE, enabled);
    let forced = |io: &IoAttachment| {
        let write = admit(io, IoCommand::write(Nsid(1), Lba(0), 1)).unwrap();
        let zeroes = admit(io, IoCommand::write_zeroes(Nsid(1), Lba(0), 1, false)).unwrap();
        (
            matches!(write, IoPlan::Write { fua: true, .. }),
            matches!(zeroes, IoPlan::WriteZeroes { fua: true, .. }),
        )
    };
    assert_eq!(forced(&io), (false, false));
    admin.run(set(0)).unwrap();
    assert_eq!(forced(&io), (true, true));
    admin.run(set(1)).unwrap();
    assert_eq!(forced(&io), (false, false));
    let mut asked = IoCommand::write(Nsid(1), Lba(0), 1);
    if let IoCommand::Write { fua, .. } = &mut asked {
        *fua = true;
    }
    assert!(matches!(admit(&io, asked), Ok(IoPlan::Write { fua: true, .. })));
}

#[test]
fn ranges_are_all_good_or_none_is_taken() {
    let (_admin, io) = Target::new().ready();
    let command = IoCommand::deallocate(Nsid(1), 3).to_command(CommandId(5)).unwrap();
    let bytes = |ranges: &[DsmRange]| bytemuck_bytes(ranges);
    let mut out = vec![BlockRange { start: 9, blocks: 9 }];
    let list = bytes(&[
        DsmRange::new(Lba(0), 1000),
        DsmRange::new(Lba(1000), 0),
        DsmRange::new(Lba(999), 1),
    ]);
    io.parse_ranges(&command, &list, &mut out).unwrap();
    assert_eq!(out, [BlockRange { start: 0, blocks: 1000 }, BlockRange { start: 999, blocks: 1 }]);
    for bad in [
        DsmRange::new(Lba(1000), 1),
        DsmRange::new(Lba(1001), 0),
        DsmRange::new(Lba(u64::MAX), 1),
        DsmRange::new(Lba(1), u32::MAX),
    ] {
        let list = bytes(&[DsmRange::new(Lba(0), 1), bad]);
        let got = io.parse_ranges(&command, &list, &mut out);
        assert_refused(got, Status::LBA_OUT_OF_RANGE);
        assert_eq!(out, []);
    }
}

fn bytemuck_bytes(ranges: &[DsmRange]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for range in ranges {
        bytes.extend(range.attributes.get().to_le_bytes());
        bytes.extend(range.blocks.get().to_le_bytes());
        bytes.extend(range.slba.get().to_le_bytes());
    }
    bytes
}

#[test]
fn fabrics_commands_on_an_io_queue() {
    let (_admin, io) = Target::new().ready();
    let run = |command: FabricsCommand| io.admit(&command.to_command(CommandId(1)));
    assert_eq!(run(FabricsCommand::Disconnect { recfmt: 0 }), Ok(IoPlan::Disconnect));
    assert_refused(
        run(FabricsCommand::Disconnect { recfmt: 1 }),
        Status::CONNECT_INCOMPATIBLE_FORMAT,
    );
    let get = FabricsCommand::PropertyGet { size: PropertySize::Eight, offset: 0 };
    assert_refused(run(get), Status::INVALID_QUEUE_TYPE);
    assert_refused(run(FabricsCommand::Unsupported(6.into())), Status::INVALID_OPCODE);
    let connect = FabricsCommand::Connect {
        recfmt: 0,
        qid: Qid(1),
        sqsize: QueueSize::from_zero_based(31),
        cattr: 0,
        kato_ms: 0,
    };
    assert_refused(run(connect), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn what_io_queues_count_stands_in_the_logs() {
    let target = Target::new();
    let (mut admin, io) = target.ready();
    let read = Command::read(Nsid(1), Lba(0), 200).unwrap();
    let write = Command::write(Nsid(2), Lba(77), 3).unwrap().with_cid(CommandId(0x1234));
    for _ in 0..20 {
        let plan = io.admit(&read).unwrap();
        assert_eq!(io.finish(&read, &plan, Status::SUCCESS), Status::SUCCESS);
    }
    let plan = io.admit(&write).unwrap();
    io.finish(&write, &plan, Status::SUCCESS);
    let failed = io.finish(&write, &plan, Status::WRITE_FAULT.with_dnr());
    assert!(failed.more() && failed.same_code(Status::WRITE_FAULT));
    let second = target.io(&admin, 2).unwrap();
    let beyond = Command::read(Nsid(1), Lba(1000), 1).unwrap();
    assert!(second.admit(&beyond).is_err());
    // What is counted outlives the queue.
    drop(io);

    admin.now = seconds(2 * 3600 + 5);
    let log = |lid: LogPage, bytes| {
        AdminCommand::log_page(lid.0, Nsid::ALL, Numd::from_bytes(bytes).unwrap(), 0)
    };
    let (_, smart) = admin.run(log(LogPage::SMART_HEALTH, 512)).unwrap();
    let counter = |at: usize| u64::from_le_bytes(smart[at..at + 8].try_into().unwrap());
    // 20 reads of 102,400 bytes are exactly 4 units of 512,000; 12,288 bytes start one.
    assert_eq!((counter(32), counter(48)), (4, 1));
    assert_eq!((counter(64), counter(80)), (20, 1));
    assert_eq!(counter(128), 2, "hours");
    assert_eq!(counter(160), 1, "media errors");
    assert_eq!(counter(176), 2, "errors");

    let (_, errors) = admin.run(log(LogPage::ERROR_INFORMATION, 128)).unwrap();
    let newest = lariat_wire::nvme::log::ErrorEntry::read_from(&errors).unwrap();
    assert_eq!(newest.error_count.get(), 2);
    assert_eq!((newest.sqid.get(), newest.lba.get(), newest.nsid.get()), (2, 1000, 1));
    assert!(newest.status().same_code(Status::LBA_OUT_OF_RANGE));
    let older = lariat_wire::nvme::log::ErrorEntry::read_from(&errors[64..]).unwrap();
    assert_eq!((older.sqid.get(), older.cid.get(), older.lba.get()), (1, 0x1234, 77));
    assert!(older.status().same_code(Status::WRITE_FAULT));
}

proptest! {
    /// Exactly the ranges inside the namespace pass, near its end and near the end of numbers.
    #[test]
    fn ranges_pass_if_and_only_if_they_fit(
        four_k: bool,
        near in prop_oneof![0u64..1100, (u64::MAX - 300)..=u64::MAX, any::<u64>()],
        blocks in 1u32..=32,
        write: bool,
    ) {
        let (_admin, io) = Target::new().ready();
        let (nsid, capacity, block_bytes) = if four_k { (2, 500, 4096) } else { (1, 1000, 512) };
        let (nsid, slba) = (Nsid(nsid), Lba(near));
        let command = if write {
            IoCommand::write(nsid, slba, blocks)
        } else {
            IoCommand::read(nsid, slba, blocks)
        };
        let fits = u128::from(near) + u128::from(blocks) <= capacity;
        match admit(&io, command) {
            Ok(plan) => {
                prop_assert!(fits);
                prop_assert_eq!(plan.transfer().bytes(), blocks * block_bytes);
            }
            Err(status) => {
                prop_assert!(!fits);
                prop_assert!(status.same_code(Status::LBA_OUT_OF_RANGE) && status.dnr());
            }
        }
    }

    /// Any command gets a plan within the limits, or a failure.
    #[test]
    fn any_io_command_is_answered(
        commands in proptest::collection::vec(
            (any::<[[u8; 32]; 2]>(), 0u8..0x1a, any::<bool>(), 0u32..6, 0u64..1200), 1..20),
    ) {
        let (_admin, io) = Target::new().ready();
        for (bytes, opcode, known, nsid, slba) in commands {
            let mut command = Command::from_bytes(bytes.as_flattened().first_chunk().unwrap());
            if known {
                command.opcode = opcode;
                command.flags = 0x40;
                command.nsid.set(nsid);
                command.cdw10.set(u32::try_from(slba).unwrap());
                command.cdw11.set(0);
                command.cdw12.set(command.cdw12.get() & 0x1ff);
            }
            match io.admit(&command) {
                Ok(plan) => prop_assert!(plan.transfer().bytes() <= limits().mdts_bytes),
                Err(status) => prop_assert!(!status.is_success()),
            }
        }
    }
}
