//! Log pages (NVMe Base 2.1, 5.1.12): whole pages are made, and the part that was asked for is
//! copied out. Called by `controller`; `attachment` keeps its [`ErrorRing`].
//!
//! There is no Asymmetric Namespace Access log: all paths are equal, so ANA is not advertised and
//! the page is refused.

use std::collections::VecDeque;

use lariat_fabric::Timestamp;
use lariat_wire::nvme::log::{
    ChangedNamespaces, CommandEffects, Effects, ErrorEntry, FirmwareSlots, SmartHealth,
    SupportedLogPages, TransportType,
};
use lariat_wire::nvme::{AdminOpcode, CommandId, IoOpcode, Lba, LogPage, Nsid, Qid, Status};

use super::attachment::ControllerShared;
use super::discovery;
use super::registry::Registry;
use super::subsystem::Subsystem;

/// A failed command, for the Error Information log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorReport {
    pub(super) qid: Qid,
    pub(super) cid: CommandId,
    pub(super) opcode: u8,
    pub(super) status: Status,
    pub(super) nsid: Nsid,
    pub(super) lba: Lba,
}

/// Entries kept of the Error Information log.
pub(super) const ERROR_ENTRIES: usize = 64;

/// The last failed commands.
#[derive(Debug, Default)]
pub(super) struct ErrorRing {
    /// Newest first.
    entries: VecDeque<ErrorReport>,
    /// Errors ever seen: the newest entry's count.
    count: u64,
}

impl ErrorRing {
    pub(super) fn push(&mut self, report: ErrorReport) {
        self.entries.truncate(ERROR_ENTRIES - 1);
        self.entries.push_front(report);
        self.count = self.count.saturating_add(1);
    }

    /// Newest first, each with its error count.
    fn iter(&self) -> impl Iterator<Item = (u64, &ErrorReport)> {
        (1..=self.count).rev().zip(&self.entries)
    }
}

/// What a Get Log Page asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) page: LogPage,
    pub(super) nsid: Nsid,
    /// First byte of the page that is wanted.
    pub(super) offset_bytes: u64,
}

/// What the pages tell of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) subsystem: &'a Subsystem,
    pub(super) registry: &'a Registry,
    pub(super) shared: &'a ControllerShared,
    /// When the controller was made.
    pub(super) started: Timestamp,
}

const IO_PAGES: [LogPage; 6] = [
    LogPage::SUPPORTED_LOG_PAGES,
    LogPage::ERROR_INFORMATION,
    LogPage::SMART_HEALTH,
    LogPage::FIRMWARE_SLOT,
    LogPage::CHANGED_NAMESPACES,
    LogPage::COMMAND_EFFECTS,
];

const DISCOVERY_PAGES: [LogPage; 3] =
    [LogPage::SUPPORTED_LOG_PAGES, LogPage::ERROR_INFORMATION, LogPage::DISCOVERY];

/// Fills `data`, all of it: the page from the offset on, zeroes behind its end. An offset beyond
/// the end is an invalid field.
pub(super) fn read(
    source: &Source<'_>,
    now: Timestamp,
    request: Request,
    data: &mut [u8],
) -> Result<(), Status> {
    let page = page(source, now, request)?;
    let rest = usize::try_from(request.offset_bytes)
        .ok()
        .and_then(|offset| page.get(offset..))
        .ok_or(Status::INVALID_FIELD.with_dnr())?;
    let (filled, behind) = data.split_at_mut(rest.len().min(data.len()));
    for (to, from) in filled.iter_mut().zip(rest) {
        *to = *from;
    }
    behind.fill(0);
    Ok(())
}

fn page(source: &Source<'_>, now: Timestamp, request: Request) -> Result<Vec<u8>, Status> {
    let discovery = source.subsystem.is_discovery();
    let pages: &[LogPage] = if discovery { &DISCOVERY_PAGES } else { &IO_PAGES };
    if !pages.contains(&request.page) {
        return Err(Status::INVALID_LOG_PAGE.with_dnr());
    }
    Ok(match request.page {
        LogPage::SUPPORTED_LOG_PAGES => {
            SupportedLogPages::new(pages.iter().copied()).as_bytes().to_vec()
        }
        LogPage::ERROR_INFORMATION => source.shared.with_errors(error_page),
        LogPage::SMART_HEALTH => {
            // One page for the controller; LPA says that namespaces have none of their own.
            if request.nsid != Nsid::NONE && request.nsid != Nsid::ALL {
                return Err(Status::INVALID_FIELD.with_dnr());
            }
            health(source, now).as_bytes().to_vec()
        }
        LogPage::FIRMWARE_SLOT => {
            FirmwareSlots::single(env!("CARGO_PKG_VERSION")).as_bytes().to_vec()
        }
        // Namespaces of a standing controller do not change.
        LogPage::CHANGED_NAMESPACES => ChangedNamespaces::default().as_bytes().to_vec(),
        LogPage::COMMAND_EFFECTS => effects().as_bytes().to_vec(),
        LogPage::DISCOVERY => {
            let (map, generation) = source.registry.snapshot();
            discovery::log_page(&map, generation, source.shared.host_nqn())
        }
        _ => return Err(Status::INVALID_LOG_PAGE.with_dnr()),
    })
}

fn error_page(errors: &ErrorRing) -> Vec<u8> {
    let mut page = Vec::with_capacity(ERROR_ENTRIES * ErrorEntry::BYTES);
    for (count, report) in errors.iter() {
        let ErrorReport { qid, cid, opcode, status, nsid, lba } = *report;
        let mut entry = ErrorEntry::new(count, qid, cid, status, nsid).with_lba(lba);
        entry.opcode = opcode;
        entry.trtype = TransportType::RDMA.0;
        page.extend_from_slice(entry.as_bytes());
    }
    page.resize(ERROR_ENTRIES * ErrorEntry::BYTES, 0);
    page
}

/// What a target can know: its traffic, its errors and how long the controller has been there. No
/// temperature, no wear.
fn health(source: &Source<'_>, now: Timestamp) -> SmartHealth {
    let totals = source.shared.totals();
    let mut health = SmartHealth::default();
    health.available_spare = 100;
    health.available_spare_threshold = 10;
    health.data_units_read.set(SmartHealth::data_units(u128::from(totals.bytes_read)));
    health.data_units_written.set(SmartHealth::data_units(u128::from(totals.bytes_written)));
    health.host_read_commands.set(u128::from(totals.reads));
    health.host_write_commands.set(u128::from(totals.writes));
    health.power_cycles.set(1);
    health.power_on_hours.set(u128::from(now.since(source.started).as_secs() / 3600));
    health.media_errors.set(u128::from(totals.media_errors));
    health.error_log_entries.set(u128::from(source.shared.with_errors(|errors| errors.count)));
    health
}

fn effects() -> CommandEffects {
    let mut log = CommandEffects::default();
    for opcode in [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
    ] {
        log.set_admin(opcode.0, Effects::SUPPORTED);
    }
    for opcode in [IoOpcode::FLUSH, IoOpcode::READ] {
        log.set_io(opcode.0, Effects::SUPPORTED);
    }
    for opcode in [IoOpcode::WRITE, IoOpcode::WRITE_ZEROES, IoOpcode::DATASET_MANAGEMENT] {
        log.set_io(opcode.0, Effects::SUPPORTED.with(Effects::BLOCK_CONTENT));
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_stays_as_long_as_it_is() {
        let mut ring = ErrorRing::default();
        for cid in 0..1000 {
            ring.push(ErrorReport {
                qid: Qid(1),
                cid: CommandId(cid),
                opcode: 2,
                status: Status::LBA_OUT_OF_RANGE,
                nsid: Nsid(1),
                lba: Lba(0),
            });
        }
        let kept: Vec<_> = ring.iter().map(|(count, report)| (count, report.cid.0)).collect();
        assert_eq!(kept.len(), ERROR_ENTRIES);
        assert_eq!((kept[0], kept[63]), ((1000, 999), (937, 936)));
    }
}
