//! The Asymmetric Namespace Access log page, LID 0Ch (NVMe Base 2.1,
//! 5.1.12.1.13): a header, then groups of a header and namespaces. Called by the
//! target's log pages and by the initiator.

use thiserror::Error;

use crate::endian::{U16Le, U32Le, U64Le};
use crate::layout::layout;
use crate::nvme::ids::Nsid;
use crate::open_enum::open_enum;

open_enum! {
    /// Access state of a group.
    AnaState(u8) {
        OPTIMIZED = 0x01, "Optimized";
        NON_OPTIMIZED = 0x02, "Non-Optimized";
        INACCESSIBLE = 0x03, "Inaccessible";
        PERSISTENT_LOSS = 0x04, "Persistent Loss";
        CHANGE = 0x0f, "Change";
    }
}

layout! {
    /// Header of the log page.
    AnaHeader[16] {
        /// Counts changes of the log page.
        0 pub change_count: U64Le,
        /// Number of groups.
        8 pub groups: U16Le,
        10 reserved_10: [u8; 6],
    }
}

impl AnaHeader {
    /// A header.
    #[must_use]
    pub fn new(change_count: u64, groups: u16) -> Self {
        Self {
            change_count: U64Le::new(change_count),
            groups: U16Le::new(groups),
            ..Self::default()
        }
    }
}

layout! {
    /// Header of a group; namespaces follow, 4 bytes each.
    AnaGroupHeader[32] {
        /// Group identifier, from 1.
        0 pub group_id: U32Le,
        /// Number of namespaces that follow.
        4 pub namespaces: U32Le,
        /// Log page's change count when the group last changed.
        8 pub change_count: U64Le,
        /// State in bits 3:0.
        16 pub state: u8,
        17 reserved_17: [u8; 15],
    }
}

impl AnaGroupHeader {
    /// A group header.
    #[must_use]
    pub fn new(group_id: u32, state: AnaState, change_count: u64, namespaces: u32) -> Self {
        Self {
            group_id: U32Le::new(group_id),
            namespaces: U32Le::new(namespaces),
            change_count: U64Le::new(change_count),
            state: state.0 & 0xf,
            ..Self::default()
        }
    }
}

/// A group of the log page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnaGroup<'a> {
    /// Its header.
    pub header: AnaGroupHeader,
    nsids: &'a [U32Le],
}

impl AnaGroup<'_> {
    /// State.
    #[must_use]
    pub const fn state(&self) -> AnaState {
        AnaState(self.header.state & 0xf)
    }

    /// Its namespaces.
    pub fn namespaces(&self) -> impl ExactSizeIterator<Item = Nsid> + '_ {
        self.nsids.iter().map(|nsid| Nsid(nsid.get()))
    }
}

/// Why an ANA log page is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AnaLogError {
    /// The page ends within its header or a group.
    #[error("ANA log page ends at byte {length}, within what starts at byte {at}")]
    Truncated {
        /// Where the header or group starts.
        at: usize,
        /// Length of the page.
        length: usize,
    },
}

/// Reads the header and gives the groups. After an error there are no more.
///
/// # Errors
/// The page is shorter than its header.
pub fn parse_ana_groups(
    page: &[u8],
) -> Result<(AnaHeader, impl Iterator<Item = Result<AnaGroup<'_>, AnaLogError>>), AnaLogError> {
    let length = page.len();
    let header = AnaHeader::read_from(page).ok_or(AnaLogError::Truncated { at: 0, length })?;
    let mut left = header.groups.get();
    let mut at = AnaHeader::BYTES;
    let groups = core::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let Some((group, used)) = page.get(at..).and_then(read_group) else {
            left = 0;
            return Some(Err(AnaLogError::Truncated { at, length }));
        };
        at += used;
        Some(Ok(group))
    });
    Ok((header, groups))
}

/// The group at the start of `bytes` and how long it is.
fn read_group(bytes: &[u8]) -> Option<(AnaGroup<'_>, usize)> {
    let header = AnaGroupHeader::read_from(bytes)?;
    let list = usize::try_from(header.namespaces.get()).ok()?.checked_mul(4)?;
    let used = AnaGroupHeader::BYTES.checked_add(list)?;
    let nsids = bytemuck::try_cast_slice(bytes.get(AnaGroupHeader::BYTES..used)?).ok()?;
    Some((AnaGroup { header, nsids }, used))
}
