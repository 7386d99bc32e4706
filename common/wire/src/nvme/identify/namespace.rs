//! Identify Namespace of the NVM command set, CNS 00h (NVM Command Set 1.1,
//! 4.1.5.1). Called by the target's namespaces and the initiator.

use crate::endian::{U16Le, U32Le, U64Le, U128Le};
use crate::layout::layout;

layout! {
    /// An LBA format.
    LbaFormat[4] {
        /// Metadata bytes per block.
        0 pub ms: U16Le,
        /// Block size as an exponent of 2; 9 (512 B) at least where the format
        /// exists, 0 where not.
        2 pub lbads: u8,
        /// Relative performance, 2 bits: 0 best.
        3 pub rp: u8,
    }
}

impl LbaFormat {
    /// A format of `1 << shift` bytes per block without metadata.
    #[must_use]
    pub fn new(shift: u8) -> Self {
        Self { lbads: shift, ..Self::default() }
    }

    /// Block size in bytes; `None` for a format that does not exist or is absurd.
    #[must_use]
    pub const fn block_bytes(&self) -> Option<u32> {
        match self.lbads {
            9..=31 => Some(1 << self.lbads),
            _ => None,
        }
    }
}

layout! {
    /// Identify Namespace data. Field names are the specification's.
    IdentifyNamespace[4096] {
        /// Size in blocks.
        0 pub nsze: U64Le,
        /// Capacity in blocks.
        8 pub ncap: U64Le,
        /// Utilization in blocks.
        16 pub nuse: U64Le,
        /// Features: bit 0 thin provisioning, 1 atomics fields, 2 deallocation
        /// error, 4 preferred granularities (OPTPERF).
        24 pub nsfeat: u8,
        /// Number of LBA formats, zero-based.
        25 pub nlbaf: u8,
        /// Format in use: index bits 3:0, metadata at end bit 4, index high bits 6:5.
        26 pub flbas: u8,
        /// Metadata capabilities.
        27 pub mc: u8,
        /// Protection capabilities.
        28 pub dpc: u8,
        /// Protection settings.
        29 pub dps: u8,
        /// Multi-path and sharing; bit 0: shared by controllers.
        30 pub nmic: u8,
        /// Reservation capabilities.
        31 pub rescap: u8,
        /// Format progress.
        32 pub fpi: u8,
        /// Deallocation: bits 2:0 what deallocated blocks read as (1 zeros),
        /// bit 3 Write Zeroes may deallocate.
        33 pub dlfeat: u8,
        /// Atomic write unit in blocks, zero-based.
        34 pub nawun: U16Le,
        /// Atomic write unit at power failure in blocks, zero-based.
        36 pub nawupf: U16Le,
        /// Atomic compare-and-write unit in blocks, zero-based.
        38 pub nacwu: U16Le,
        /// Atomic boundary size in blocks, zero-based.
        40 pub nabsn: U16Le,
        /// Atomic boundary offset in blocks.
        42 pub nabo: U16Le,
        /// Atomic boundary size at power failure in blocks, zero-based.
        44 pub nabspf: U16Le,
        /// Optimal I/O boundary in blocks.
        46 pub noiob: U16Le,
        /// NVM capacity in bytes.
        48 pub nvmcap: U128Le,
        /// Preferred write granularity in blocks, zero-based.
        64 pub npwg: U16Le,
        /// Preferred write alignment in blocks, zero-based.
        66 pub npwa: U16Le,
        /// Preferred deallocation granularity in blocks, zero-based.
        68 pub npdg: U16Le,
        /// Preferred deallocation alignment in blocks, zero-based.
        70 pub npda: U16Le,
        /// Optimal write size in blocks, zero-based.
        72 pub nows: U16Le,
        /// Longest range of a Copy in blocks.
        74 pub mssrl: U16Le,
        /// Longest Copy in blocks.
        76 pub mcl: U32Le,
        /// Most ranges of a Copy, zero-based.
        80 pub msrc: u8,
        81 reserved_81: u8,
        /// Number of unique-attribute LBA formats.
        82 pub nulbaf: u8,
        83 reserved_83: [u8; 9],
        /// ANA group identifier; 0 is none.
        92 pub anagrpid: U32Le,
        96 reserved_96: [u8; 3],
        /// Attributes; bit 0: write-protected.
        99 pub nsattr: u8,
        /// NVM set identifier.
        100 pub nvmsetid: U16Le,
        /// Endurance group identifier.
        102 pub endgid: U16Le,
        /// Globally unique identifier, big-endian; zeros are none.
        104 pub nguid: [u8; 16],
        /// Extended unique identifier, big-endian; zeros are none.
        120 pub eui64: [u8; 8],
        /// LBA formats.
        128 pub lbaf: [LbaFormat; 64],
        /// Vendor-specific.
        384 pub vs: [[u8; 128]; 29],
    }
}

impl IdentifyNamespace {
    /// A namespace of `blocks` blocks of `1 << shift` bytes, fully allocated,
    /// with that one format.
    #[must_use]
    pub fn new(blocks: u64, shift: u8) -> Self {
        let mut data = Self {
            nsze: U64Le::new(blocks),
            ncap: U64Le::new(blocks),
            nuse: U64Le::new(blocks),
            ..Self::default()
        };
        if let Some(format) = data.lbaf.first_mut() {
            *format = LbaFormat::new(shift);
        }
        data
    }

    /// Whether this is what a controller returns for a namespace that is not
    /// active: all zeros.
    #[must_use]
    pub fn is_inactive(&self) -> bool {
        self.nsze.get() == 0 && self.ncap.get() == 0
    }

    /// Index of the format in use: bits 3:0 and 6:5 of FLBAS.
    #[must_use]
    pub fn format_index(&self) -> usize {
        usize::from(self.flbas & 0xf | (self.flbas >> 1) & 0x30)
    }

    /// The format in use.
    #[must_use]
    pub fn format(&self) -> LbaFormat {
        self.lbaf.get(self.format_index()).copied().unwrap_or_default()
    }

    /// Block size of the format in use in bytes; `None` when it is not sane.
    #[must_use]
    pub fn block_bytes(&self) -> Option<u32> {
        self.format().block_bytes()
    }

    /// Size in bytes; `None` when the format is not sane or the size overflows.
    #[must_use]
    pub fn size_bytes(&self) -> Option<u64> {
        self.nsze.get().checked_mul(u64::from(self.block_bytes()?))
    }
}
