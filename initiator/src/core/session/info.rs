//! What a session knows of its controller and namespaces, from Identify data. Calls the wire types;
//! called by `bringup`, shown to users.

use lariat_wire::nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceDescriptor, Oncs, SglSupport, parse_descriptors,
};
use lariat_wire::nvme::{Capabilities, Csi, Nsid, Version};

use crate::core::split::Geometry;

/// OFCS bit 0: the Disconnect command is supported.
const OFCS_DISCONNECT: u16 = 1;

/// The controller, as far as this initiator needs it; `identify` has the rest.
#[derive(Clone, Debug)]
pub struct ControllerInfo {
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Its version.
    pub version: Version,
    /// All of its Identify data.
    pub identify: Box<IdentifyController>,
}

impl ControllerInfo {
    /// Most bytes of one command: MDTS in units of the smallest page (NVMe Base 2.1, 5.1.13.2.1),
    /// cut to `most`.
    #[must_use]
    pub fn max_transfer_bytes(&self, most: u32) -> u32 {
        let limit = self.identify.transfer_limit().bytes(self.capabilities.min_page_bytes());
        limit.map_or(most, |bytes| u32::try_from(bytes).map_or(most, |bytes| bytes.min(most)))
    }

    /// Most commands that the controller wants outstanding on a queue (MAXCMD).
    #[must_use]
    pub fn max_commands(&self) -> u32 {
        match self.identify.maxcmd.get() {
            0 => u32::MAX,
            most => u32::from(most),
        }
    }

    /// Bytes of data that a write's capsule may carry, cut to `most`. None where the controller
    /// does not take the descriptor that says so (SGLS bit 20). An offset (ICDOFF) is legal but
    /// used by nobody; then data goes by keyed descriptors.
    #[must_use]
    pub fn in_capsule_bytes(&self, most: u32) -> u32 {
        let offsets = self.identify.sgls.get() & SglSupport::OFFSETS != 0;
        if self.identify.icdoff.get() != 0 || !offsets {
            return 0;
        }
        u32::try_from(self.identify.in_capsule_data_bytes()).map_or(most, |bytes| bytes.min(most))
    }

    /// Whether I/O queues take the Disconnect command.
    #[must_use]
    pub fn supports_disconnect(&self) -> bool {
        self.identify.ofcs.get() & OFCS_DISCONNECT != 0
    }

    /// Whether Write Zeroes is supported.
    #[must_use]
    pub fn supports_write_zeroes(&self) -> bool {
        self.identify.supports(Oncs::WRITE_ZEROES)
    }

    /// Whether deallocation (Dataset Management) is supported.
    #[must_use]
    pub fn supports_deallocate(&self) -> bool {
        self.identify.supports(Oncs::DATASET_MANAGEMENT)
    }
}

/// A namespace.
#[derive(Clone, Debug)]
pub struct NamespaceInfo {
    /// Identifier, block size and number of blocks.
    pub geometry: Geometry,
    /// UUID, if it has one.
    pub uuid: Option<[u8; 16]>,
    /// NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// EUI-64, if it has one.
    pub eui64: Option<[u8; 8]>,
    /// Whether writes are refused.
    pub write_protected: bool,
    /// All of its Identify data.
    pub identify: Box<IdentifyNamespace>,
}

impl NamespaceInfo {
    /// From Identify data; `None` where the format is one this initiator cannot use (no blocks of
    /// 512 bytes to 64 KiB, or metadata).
    #[must_use]
    pub fn new(nsid: Nsid, identify: IdentifyNamespace) -> Option<Self> {
        let format = identify.format();
        let block_bytes = format.block_bytes().filter(|&bytes| bytes <= 65_536)?;
        if format.ms.get() != 0 || identify.is_inactive() {
            return None;
        }
        let present = |id: &[u8]| id.iter().any(|&byte| byte != 0);
        Some(Self {
            geometry: Geometry { nsid, block_bytes, blocks: identify.nsze.get() },
            uuid: None,
            nguid: Some(identify.nguid).filter(|id| present(id)),
            eui64: Some(identify.eui64).filter(|id| present(id)),
            write_protected: identify.nsattr & 1 != 0,
            identify: Box::new(identify),
        })
    }

    /// Adds what a descriptor list says. Returns whether it is of the NVM command set; a broken
    /// list counts up to where it is broken.
    pub(super) fn describe(&mut self, list: &[u8]) -> bool {
        let mut nvm = true;
        for descriptor in parse_descriptors(list).map_while(Result::ok) {
            match descriptor {
                NamespaceDescriptor::Uuid(id) => self.uuid = Some(id),
                NamespaceDescriptor::Nguid(id) => self.nguid = Some(id),
                NamespaceDescriptor::Eui64(id) => self.eui64 = Some(id),
                NamespaceDescriptor::CommandSet(csi) => nvm = csi == Csi::NVM,
                NamespaceDescriptor::Unknown { .. } => {}
            }
        }
        nvm
    }
}
