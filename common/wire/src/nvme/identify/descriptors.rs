//! Namespace Identification Descriptor list, CNS 03h (NVMe Base 2.1,
//! 5.1.13.2.3). Called as `controller`.

use thiserror::Error;

use super::IDENTIFY_BYTES;
use crate::nvme::command::Csi;

const TYPE_EUI64: u8 = 1;
const TYPE_NGUID: u8 = 2;
const TYPE_UUID: u8 = 3;
const TYPE_CSI: u8 = 4;
const HEADER_BYTES: usize = 4;

/// One identifier of a namespace. Identifiers are big-endian byte strings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceDescriptor<'a> {
    /// IEEE Extended Unique Identifier.
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// UUID.
    Uuid([u8; 16]),
    /// Command set of the namespace.
    CommandSet(Csi),
    /// Any other descriptor.
    Unknown {
        /// Descriptor type, not 0.
        kind: u8,
        /// The identifier.
        id: &'a [u8],
    },
}

/// Why a descriptor list is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DescriptorError {
    /// The descriptor runs past the end of the data.
    #[error("namespace descriptor at byte {at} needs {needed} bytes, {left} are left")]
    Truncated {
        /// Where the descriptor starts.
        at: usize,
        /// Bytes of header and identifier.
        needed: usize,
        /// Bytes to the end of the data.
        left: usize,
    },
    /// The length does not fit the type.
    #[error("namespace descriptor of type {kind} at byte {at} has length {length}")]
    WrongLength {
        /// Where the descriptor starts.
        at: usize,
        /// Descriptor type.
        kind: u8,
        /// Length of the identifier.
        length: u8,
    },
}

impl<'a> NamespaceDescriptor<'a> {
    fn parts(&self) -> (u8, &[u8]) {
        match self {
            Self::Eui64(id) => (TYPE_EUI64, id),
            Self::Nguid(id) => (TYPE_NGUID, id),
            Self::Uuid(id) => (TYPE_UUID, id),
            Self::CommandSet(csi) => (TYPE_CSI, core::slice::from_ref(&csi.0)),
            Self::Unknown { kind, id } => (*kind, id),
        }
    }

    fn from_parts(kind: u8, id: &'a [u8]) -> Option<Self> {
        Some(match kind {
            TYPE_EUI64 => Self::Eui64(id.try_into().ok()?),
            TYPE_NGUID => Self::Nguid(id.try_into().ok()?),
            TYPE_UUID => Self::Uuid(id.try_into().ok()?),
            TYPE_CSI => match id {
                [csi] => Self::CommandSet(Csi(*csi)),
                _ => return None,
            },
            _ => Self::Unknown { kind, id },
        })
    }
}

/// Reads descriptors up to the end of the list (a type of 0) or of the data.
/// After an error there are no more.
pub fn parse_descriptors(
    data: &[u8],
) -> impl Iterator<Item = Result<NamespaceDescriptor<'_>, DescriptorError>> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let start = at;
        let rest = data.get(start..)?;
        let (&[kind, length, _, _], body) = rest.split_first_chunk::<HEADER_BYTES>()?;
        if kind == 0 {
            return None;
        }
        let needed = HEADER_BYTES + usize::from(length);
        let Some(id) = body.get(..usize::from(length)) else {
            at = data.len();
            let left = rest.len();
            return Some(Err(DescriptorError::Truncated { at: start, needed, left }));
        };
        match NamespaceDescriptor::from_parts(kind, id) {
            Some(descriptor) => {
                at = start + needed;
                Some(Ok(descriptor))
            }
            None => {
                at = data.len();
                Some(Err(DescriptorError::WrongLength { at: start, kind, length }))
            }
        }
    })
}

/// Writes a descriptor list into Identify data.
#[derive(Clone, Debug)]
pub struct NamespaceDescriptorWriter {
    data: [u8; IDENTIFY_BYTES],
    used: usize,
}

impl Default for NamespaceDescriptorWriter {
    fn default() -> Self {
        Self { data: [0; IDENTIFY_BYTES], used: 0 }
    }
}

impl NamespaceDescriptorWriter {
    /// Adds a descriptor; `false` and no change when it does not fit, or when it
    /// is an unknown one of type 0 or of more than 255 bytes.
    #[must_use]
    pub fn push(&mut self, descriptor: &NamespaceDescriptor<'_>) -> bool {
        let (kind, id) = descriptor.parts();
        let Ok(length) = u8::try_from(id.len()) else { return false };
        let end = self.used + HEADER_BYTES + id.len();
        let Some(space) = self.data.get_mut(self.used..end) else { return false };
        let Some((header, body)) = space.split_first_chunk_mut::<HEADER_BYTES>() else {
            return false;
        };
        if kind == 0 {
            return false;
        }
        *header = [kind, length, 0, 0];
        body.copy_from_slice(id);
        self.used = end;
        true
    }

    /// The Identify data.
    #[must_use]
    pub fn finish(self) -> [u8; IDENTIFY_BYTES] {
        self.data
    }
}
