//! Asking a discovery controller what there is (NVMe Base 2.1, 5.1.12.3.1). Calls `controller`.

pub use lariat_wire::nvme::log::DiscoveryEntry;
use lariat_wire::nvme::log::DiscoveryHeader;
use lariat_wire::nvme::{LogPage, Nsid};

use crate::controller::Controller;
use crate::error::{AdminError, Error};
use crate::options::ConnectOptions;

/// Size of the header and of each entry.
const RECORD_BYTES: u64 = 1024;
/// More entries than this are not read: a log without end is not read without end.
const MAX_ENTRIES: u64 = 65_536;
/// How often reading starts anew when the log changes meanwhile.
const ATTEMPTS: u32 = 5;

/// Connects to the discovery controller that `options` name (see [`ConnectOptions::discovery`]),
/// reads its log and disconnects.
///
/// # Errors
/// Connecting or reading failed, or the log changed each time it was read.
pub fn discover(options: &ConnectOptions) -> Result<Vec<DiscoveryEntry>, Error> {
    let controller = Controller::connect(options.clone())?;
    Ok(controller.discovery_log()?)
}

impl Controller {
    /// The discovery log of this (discovery) controller.
    ///
    /// # Errors
    /// Reading failed, or the log changed each time it was read.
    pub fn discovery_log(&self) -> Result<Vec<DiscoveryEntry>, AdminError> {
        for _ in 0..ATTEMPTS {
            let header = self.discovery_header()?;
            let count = header.entries.get();
            if count > MAX_ENTRIES {
                return Err(AdminError::Malformed("the discovery log has too many entries"));
            }
            let bytes =
                self.log_page(LogPage::DISCOVERY, Nsid::NONE, RECORD_BYTES, count * RECORD_BYTES)?;
            // The generation tells whether header and entries belong together.
            if self.discovery_header()?.generation == header.generation {
                let (records, _) = bytes.as_chunks();
                return Ok(records
                    .iter()
                    .map(|record| *DiscoveryEntry::from_bytes(record))
                    .collect());
            }
        }
        Err(AdminError::Unstable)
    }

    fn discovery_header(&self) -> Result<DiscoveryHeader, AdminError> {
        let bytes = self.log_page(LogPage::DISCOVERY, Nsid::NONE, 0, RECORD_BYTES)?;
        DiscoveryHeader::read_from(&bytes)
            .filter(|header| header.record_format.get() == 0)
            .ok_or(AdminError::Malformed("the discovery log's record format is unknown"))
    }
}
