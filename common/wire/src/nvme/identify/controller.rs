//! Identify Controller, CNS 01h (NVMe Base 2.1, 5.1.13.2.1, Figure "Identify
//! Controller Data Structure"). Called by the target's and the initiator's
//! controller set-up.

use crate::ascii;
use crate::endian::{U16Le, U32Le, U128Le};
use crate::layout::layout;
use crate::nvme::ids::ControllerId;
use crate::nvme::nqn::{Nqn, NqnError};
use crate::nvme::property::Version;
use crate::open_enum::open_enum;

open_enum! {
    /// Controller type (CNTRLTYPE).
    ControllerType(u8) {
        NOT_REPORTED = 0, "Not reported";
        IO = 1, "I/O controller";
        DISCOVERY = 2, "Discovery controller";
        ADMINISTRATIVE = 3, "Administrative controller";
    }
}

/// Bits of CMIC: more than one port, controller, or function; ANA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cmic;

impl Cmic {
    /// The subsystem may have more than one port.
    pub const MULTI_PORT: u8 = 1;
    /// The subsystem may have more than one controller.
    pub const MULTI_CONTROLLER: u8 = 1 << 1;
    /// Asymmetric Namespace Access is reported.
    pub const ANA: u8 = 1 << 3;
}

/// Bits of OAES: the optional events a controller can send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEventSupport;

impl AsyncEventSupport {
    /// Attached namespace attributes changed.
    pub const NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
    /// Firmware activation starts.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// ANA states changed.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// The discovery log page changed.
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;
}

/// Bits of ONCS: optional I/O commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Oncs;

impl Oncs {
    /// Compare.
    pub const COMPARE: u16 = 1;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save and select fields of the features commands.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

/// Bits of SGLS: SGL support.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SglSupport;

impl SglSupport {
    /// SGLs are supported, any alignment.
    pub const SUPPORTED: u32 = 1;
    /// Keyed data block descriptors.
    pub const KEYED: u32 = 1 << 2;
    /// Descriptors may be longer than the data that the command transfers.
    pub const LONGER: u32 = 1 << 18;
    /// Offsets into in-capsule data.
    pub const OFFSETS: u32 = 1 << 20;
    /// What an RDMA target says: SGLs, keyed, offsets.
    pub const RDMA: u32 = Self::SUPPORTED | Self::KEYED | Self::OFFSETS;
}

/// MDTS: the largest data transfer of a command, as an exponent over the
/// smallest memory page (4 KiB over fabrics); 0 is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TransferLimit(pub u8);

impl TransferLimit {
    /// No limit.
    pub const UNLIMITED: Self = Self(0);

    /// The largest limit not above `bytes`; `None` when that is less than the
    /// 8 KiB that an exponent of 1 means.
    #[must_use]
    pub fn at_most(bytes: u64) -> Option<Self> {
        let exponent = (bytes / 4096).checked_ilog2()?;
        match u8::try_from(exponent) {
            Ok(0) | Err(_) => None,
            Ok(exponent) => Some(Self(exponent)),
        }
    }

    /// The limit in bytes over pages of `page_bytes`; `None` is no limit.
    #[must_use]
    pub fn bytes(self, page_bytes: u64) -> Option<u64> {
        match self.0 {
            0 => None,
            exponent => Some(
                1u64.checked_shl(u32::from(exponent))
                    .and_then(|pages| pages.checked_mul(page_bytes))
                    .unwrap_or(u64::MAX),
            ),
        }
    }
}

layout! {
    /// A power state descriptor.
    PowerState[32] {
        /// Maximum power in units of 0.01 W (or 0.0001 W, by `flags` bit 0).
        0 pub max_power: U16Le,
        2 reserved_2: u8,
        /// Bit 0: scale of the maximum power; bit 1: not operational.
        3 pub flags: u8,
        /// Entry latency in microseconds.
        4 pub entry_latency_us: U32Le,
        /// Exit latency in microseconds.
        8 pub exit_latency_us: U32Le,
        /// Relative read throughput and latency, write throughput and latency.
        12 pub relative: [u8; 4],
        16 reserved_16: [u8; 16],
    }
}

layout! {
    /// Identify Controller data. Field names are the specification's.
    IdentifyController[4096] {
        /// PCI vendor identifier.
        0 pub vid: U16Le,
        /// PCI subsystem vendor identifier.
        2 pub ssvid: U16Le,
        /// Serial number, ASCII.
        4 pub sn: [u8; 20],
        /// Model number, ASCII.
        24 pub mn: [u8; 40],
        /// Firmware revision, ASCII.
        64 pub fr: [u8; 8],
        /// Recommended arbitration burst, log2.
        72 pub rab: u8,
        /// IEEE OUI, least significant byte first.
        73 pub ieee: [u8; 3],
        /// Multi-path and sharing, see [`Cmic`].
        76 pub cmic: u8,
        /// Maximum data transfer size, see [`TransferLimit`].
        77 pub mdts: u8,
        /// Controller identifier.
        78 pub cntlid: U16Le,
        /// Version.
        80 pub ver: U32Le,
        /// RTD3 resume latency in microseconds.
        84 pub rtd3r: U32Le,
        /// RTD3 entry latency in microseconds; also the shutdown timeout.
        88 pub rtd3e: U32Le,
        /// Optional asynchronous events, see [`AsyncEventSupport`].
        92 pub oaes: U32Le,
        /// Controller attributes; bit 0: 128-bit host identifier.
        96 pub ctratt: U32Le,
        /// Read recovery levels.
        100 pub rrls: U16Le,
        102 reserved_102: [u8; 9],
        /// Controller type, see [`ControllerType`].
        111 pub cntrltype: u8,
        /// FRU globally unique identifier.
        112 pub fguid: [u8; 16],
        /// Command retry delays 1 to 3 in units of 100 ms.
        128 pub crdt: [U16Le; 3],
        134 reserved_134: [u8; 119],
        /// NVM subsystem report (NVMe-MI).
        253 pub nvmsr: u8,
        /// VPD write cycle information (NVMe-MI).
        254 pub vwci: u8,
        /// Management endpoint capabilities (NVMe-MI).
        255 pub mec: u8,
        /// Optional admin commands.
        256 pub oacs: U16Le,
        /// Abort command limit, zero-based.
        258 pub acl: u8,
        /// Asynchronous event request limit, zero-based.
        259 pub aerl: u8,
        /// Firmware updates.
        260 pub frmw: u8,
        /// Log page attributes; bit 1: effects log, bit 2: extended data
        /// (32-bit NUMD and offset).
        261 pub lpa: u8,
        /// Error log page entries, zero-based.
        262 pub elpe: u8,
        /// Number of power states, zero-based.
        263 pub npss: u8,
        /// Admin vendor-specific command configuration.
        264 pub avscc: u8,
        /// Autonomous power state transitions.
        265 pub apsta: u8,
        /// Warning composite temperature in kelvins.
        266 pub wctemp: U16Le,
        /// Critical composite temperature in kelvins.
        268 pub cctemp: U16Le,
        /// Maximum time for firmware activation in units of 100 ms.
        270 pub mtfa: U16Le,
        /// Host memory buffer preferred size in 4 KiB.
        272 pub hmpre: U32Le,
        /// Host memory buffer minimum size in 4 KiB.
        276 pub hmmin: U32Le,
        /// Total NVM capacity in bytes.
        280 pub tnvmcap: U128Le,
        /// Unallocated NVM capacity in bytes.
        296 pub unvmcap: U128Le,
        /// Replay protected memory block support.
        312 pub rpmbs: U32Le,
        /// Extended device self-test time in minutes.
        316 pub edstt: U16Le,
        /// Device self-test options.
        318 pub dsto: u8,
        /// Firmware update granularity in 4 KiB.
        319 pub fwug: u8,
        /// Keep alive granularity in units of 100 ms; 0 is no support.
        320 pub kas: U16Le,
        /// Host controlled thermal management.
        322 pub hctma: U16Le,
        /// Minimum thermal management temperature in kelvins.
        324 pub mntmt: U16Le,
        /// Maximum thermal management temperature in kelvins.
        326 pub mxtmt: U16Le,
        /// Sanitize capabilities.
        328 pub sanicap: U32Le,
        /// Host memory buffer minimum descriptor entry size.
        332 pub hmminds: U32Le,
        /// Host memory maximum descriptor entries.
        336 pub hmmaxd: U16Le,
        /// Highest NVM set identifier.
        338 pub nsetidmax: U16Le,
        /// Highest endurance group identifier.
        340 pub endgidmax: U16Le,
        /// ANA transition time in seconds.
        342 pub anatt: u8,
        /// ANA capabilities.
        343 pub anacap: u8,
        /// Highest ANA group identifier.
        344 pub anagrpmax: U32Le,
        /// Number of ANA group identifiers.
        348 pub nanagrpid: U32Le,
        /// Persistent event log size in 64 KiB.
        352 pub pels: U32Le,
        /// Domain identifier.
        356 pub domainid: U16Le,
        358 reserved_358: [u8; 10],
        /// Largest capacity of an endurance group in bytes.
        368 pub megcap: U128Le,
        384 reserved_384: [u8; 128],
        /// Submission queue entry sizes: required in bits 3:0, largest in 7:4,
        /// as exponents; 66h.
        512 pub sqes: u8,
        /// Completion queue entry sizes, likewise; 44h.
        513 pub cqes: u8,
        /// Most outstanding commands on one queue.
        514 pub maxcmd: U16Le,
        /// Highest namespace identifier.
        516 pub nn: U32Le,
        /// Optional I/O commands, see [`Oncs`].
        520 pub oncs: U16Le,
        /// Fused operations.
        522 pub fuses: U16Le,
        /// Format NVM attributes.
        524 pub fna: u8,
        /// Volatile write cache: bit 0 present; bits 2:1 flush of all
        /// namespaces (2 no, 3 yes).
        525 pub vwc: u8,
        /// Atomic write unit in blocks, zero-based.
        526 pub awun: U16Le,
        /// Atomic write unit at power failure in blocks, zero-based.
        528 pub awupf: U16Le,
        /// I/O vendor-specific command configuration.
        530 pub icsvscc: u8,
        /// Namespace write protection.
        531 pub nwpc: u8,
        /// Atomic compare-and-write unit in blocks, zero-based.
        532 pub acwu: U16Le,
        /// Copy descriptor formats.
        534 pub cdfs: U16Le,
        /// SGL support, see [`SglSupport`].
        536 pub sgls: U32Le,
        /// Most namespaces attached at once; 0 means as many as `nn`.
        540 pub mnan: U32Le,
        /// Maximum domain namespace attachments.
        544 pub maxdna: U128Le,
        /// Maximum I/O controller namespace attachments.
        560 pub maxcna: U32Le,
        564 reserved_564: [u8; 204],
        /// Name of the subsystem, NUL-padded.
        768 pub subnqn: [u8; 256],
        1024 reserved_1024: [u8; 768],
        /// I/O queue command capsule size in 16 bytes, the command included.
        1792 pub ioccsz: U32Le,
        /// I/O queue response capsule size in 16 bytes.
        1796 pub iorcsz: U32Le,
        /// In-capsule data offset in 16 bytes from the end of the command.
        1800 pub icdoff: U16Le,
        /// Fabrics controller attributes; bit 0: static controller model.
        1802 pub fcatt: u8,
        /// Most SGL data block descriptors in a capsule; 0 is no limit.
        1803 pub msdbd: u8,
        /// Optional Fabrics commands; bit 0: Disconnect.
        1804 pub ofcs: U16Le,
        /// Discovery controller type.
        1806 pub dctype: u8,
        1807 reserved_1807: [u8; 241],
        /// Power states.
        2048 pub psd: [PowerState; 32],
        /// Vendor-specific.
        3072 pub vs: [[u8; 32]; 32],
    }
}

impl IdentifyController {
    /// Sets serial number, model number and firmware revision, space-padded.
    pub fn set_product(&mut self, serial: &str, model: &str, firmware: &str) {
        self.sn = ascii::padded(serial);
        self.mn = ascii::padded(model);
        self.fr = ascii::padded(firmware);
    }

    /// Serial number without its padding.
    #[must_use]
    pub fn serial(&self) -> String {
        ascii::read_padded(&self.sn)
    }

    /// Model number without its padding.
    #[must_use]
    pub fn model(&self) -> String {
        ascii::read_padded(&self.mn)
    }

    /// Firmware revision without its padding.
    #[must_use]
    pub fn firmware(&self) -> String {
        ascii::read_padded(&self.fr)
    }

    /// Controller identifier.
    #[must_use]
    pub fn controller_id(&self) -> ControllerId {
        ControllerId(self.cntlid.get())
    }

    /// Version.
    #[must_use]
    pub fn version(&self) -> Version {
        Version(self.ver.get())
    }

    /// Controller type.
    #[must_use]
    pub fn controller_type(&self) -> ControllerType {
        ControllerType(self.cntrltype)
    }

    /// Limit of a data transfer.
    #[must_use]
    pub fn transfer_limit(&self) -> TransferLimit {
        TransferLimit(self.mdts)
    }

    /// Name of the subsystem.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire_field(&self.subnqn)
    }

    /// Size of an I/O command capsule in bytes, the command included.
    #[must_use]
    pub fn io_capsule_bytes(&self) -> u64 {
        u64::from(self.ioccsz.get()) * 16
    }

    /// Bytes of data that fit in an I/O command capsule, past the offset.
    #[must_use]
    pub fn in_capsule_data_bytes(&self) -> u64 {
        let offset = u64::from(self.icdoff.get()) * 16;
        self.io_capsule_bytes().saturating_sub(64).saturating_sub(offset)
    }

    /// Sets the capsule sizes for `data_bytes` of in-capsule data at offset 0;
    /// a rest of less than 16 bytes is dropped.
    pub fn set_in_capsule_data(&mut self, data_bytes: u32) {
        self.ioccsz.set(data_bytes / 16 + 4);
        self.iorcsz.set(1);
        self.icdoff.set(0);
    }

    /// Whether a volatile write cache is present.
    #[must_use]
    pub const fn has_volatile_cache(&self) -> bool {
        self.vwc & 1 != 0
    }

    /// Whether an optional I/O command is there, by its bit in [`Oncs`].
    #[must_use]
    pub fn supports(&self, oncs: u16) -> bool {
        self.oncs.get() & oncs == oncs
    }

    /// Keep alive granularity in milliseconds; 0 is no support.
    #[must_use]
    pub fn keep_alive_granularity_ms(&self) -> u32 {
        u32::from(self.kas.get()) * 100
    }
}
