//! Identify data of I/O command sets: CNS 05h and 06h for NVM, 08h, 1Ch (NVMe
//! Base 2.1, 5.1.13.2; NVM Command Set 1.1, 4.1.5). Called as `controller`.

use crate::endian::{U16Le, U32Le, U64Le};
use crate::layout::layout;
use crate::nvme::command::Csi;

layout! {
    /// NVM command set specific Identify Namespace, CNS 05h CSI 00h.
    IdentifyNvmNamespace[4096] {
        /// Logical block storage tag mask.
        0 pub lbstm: U64Le,
        /// Protection information capabilities.
        8 pub pic: u8,
        /// Protection information format attributes.
        9 pub pifa: u8,
        10 reserved_10: [u8; 2],
        /// Extended LBA formats.
        12 pub elbaf: [U32Le; 64],
        /// Preferred deallocation granularity, large, in blocks.
        268 pub npdgl: U32Le,
        /// Preferred read granularity in blocks.
        272 pub nprg: U32Le,
        /// Preferred read alignment in blocks.
        276 pub npra: U32Le,
        /// Optimal read size in blocks.
        280 pub nors: U32Le,
        /// Preferred deallocation alignment, large, in blocks.
        284 pub npdal: U32Le,
        288 reserved_288: [[u8; 32]; 119],
    }
}

layout! {
    /// NVM command set specific Identify Controller, CNS 06h CSI 00h. Limits are
    /// exponents over the smallest memory page unless said otherwise; 0 is none.
    IdentifyNvmController[4096] {
        /// Verify size limit.
        0 pub vsl: u8,
        /// Write Zeroes size limit.
        1 pub wzsl: u8,
        /// Write Uncorrectable size limit.
        2 pub wusl: u8,
        /// Most ranges of a Dataset Management; 0 is no limit.
        3 pub dmrl: u8,
        /// Most blocks in one range of a Dataset Management; 0 is no limit.
        4 pub dmrsl: U32Le,
        /// Most blocks in all ranges of a Dataset Management; 0 is no limit.
        8 pub dmsl: U64Le,
        16 reserved_16: [[u8; 16]; 255],
    }
}

layout! {
    /// I/O Command Set Independent Identify Namespace, CNS 08h.
    IdentifyIndependentNamespace[4096] {
        /// Features.
        0 pub nsfeat: u8,
        /// Multi-path and sharing; bit 0: shared by controllers.
        1 pub nmic: u8,
        /// Reservation capabilities.
        2 pub rescap: u8,
        /// Format progress.
        3 pub fpi: u8,
        /// ANA group identifier; 0 is none.
        4 pub anagrpid: U32Le,
        /// Attributes; bit 0: write-protected.
        8 pub nsattr: u8,
        9 reserved_9: u8,
        /// NVM set identifier.
        10 pub nvmsetid: U16Le,
        /// Endurance group identifier.
        12 pub endgid: U16Le,
        /// Status; bit 0: ready.
        14 pub nstat: u8,
        15 reserved_15: u8,
        16 reserved_16: [[u8; 16]; 255],
    }
}

layout! {
    /// I/O command set vectors, CNS 1Ch: each a set of command sets that can be
    /// enabled together.
    IoCommandSets[4096] {
        /// Combinations; bit n is the command set with CSI n. Unused ones are 0.
        0 pub vectors: [U64Le; 512],
    }
}

impl IoCommandSets {
    /// The NVM command set alone.
    #[must_use]
    pub fn nvm_only() -> Self {
        let mut data = Self::default();
        if let Some(first) = data.vectors.first_mut() {
            first.set(1 << Csi::NVM.0);
        }
        data
    }
}
