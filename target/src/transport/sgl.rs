//! Whether the data pointer of a command can carry the transfer that the command needs, decided
//! before anything is touched (NVMe Base 2.1, 4.3.2; RDMA transport 1.1).
//!
//! Pure; the reactor calls it between admission and buffer.

use lariat_fabric::verbs::SendOp;
use lariat_wire::nvme::{Sgl, Status};
use lariat_wire::rocev2::Rkey;

/// Where the host's data is, or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostMemory {
    /// No data.
    None,
    /// Memory of the host.
    Keyed {
        /// Virtual address.
        address: u64,
        /// Its key.
        rkey: Rkey,
        /// Whether the response shall invalidate the key.
        invalidate: bool,
    },
    /// Behind the command, in the same receive buffer.
    InCapsule {
        /// Bytes from the end of the command.
        offset: u32,
    },
}

impl HostMemory {
    /// The operation that sends the response.
    pub(super) const fn response_op(self, may_invalidate: bool) -> SendOp {
        match self {
            Self::Keyed { rkey, invalidate: true, .. } if may_invalidate => {
                SendOp::SendWithInvalidate { rkey }
            }
            _ => SendOp::Send,
        }
    }
}

/// A keyed descriptor of at least `bytes`: Identify offers descriptors longer than the data (Linux
/// describes a page for each Dataset Management command), of which the rest is not touched.
fn keyed(
    address: u64,
    length: u32,
    key: u32,
    invalidate: bool,
    bytes: u32,
) -> Result<HostMemory, Status> {
    if length < bytes {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    if address.checked_add(u64::from(length)).is_none() {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    Ok(HostMemory::Keyed { address, rkey: Rkey(key), invalidate })
}

/// For commands that send `bytes` to the host.
///
/// # Errors
/// The status to answer with.
pub(super) fn to_host(sgl: Sgl, bytes: u32) -> Result<HostMemory, Status> {
    match sgl {
        Sgl::Keyed { address, length, key, invalidate } => {
            keyed(address, length, key, invalidate, bytes)
        }
        _ if sgl.is_null() => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        _ => Err(Sgl::UNUSABLE),
    }
}

/// For commands that fetch `bytes` from the host, in a capsule that had `capsule_bytes` behind the
/// command.
///
/// # Errors
/// The status to answer with.
pub(super) fn from_host(sgl: Sgl, bytes: u32, capsule_bytes: u32) -> Result<HostMemory, Status> {
    match sgl {
        Sgl::Keyed { address, length, key, invalidate } => {
            keyed(address, length, key, invalidate, bytes)
        }
        _ if sgl.is_null() => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        Sgl::InCapsule { offset, length } => {
            let offset = u32::try_from(offset)
                .ok()
                .filter(|&offset| offset <= capsule_bytes)
                .ok_or(Status::SGL_OFFSET_INVALID.with_dnr())?;
            if length < bytes || length > capsule_bytes - offset {
                return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            }
            Ok(HostMemory::InCapsule { offset })
        }
        _ => Err(Sgl::UNUSABLE),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYED: Sgl = Sgl::Keyed { address: 0x1000, length: 4096, key: 7, invalidate: true };

    #[test]
    fn keyed_has_to_hold_the_transfer() {
        let memory = HostMemory::Keyed { address: 0x1000, rkey: Rkey(7), invalidate: true };
        for bytes in [16, 512, 4096] {
            assert_eq!(to_host(KEYED, bytes), Ok(memory));
            assert_eq!(from_host(KEYED, bytes, 0), Ok(memory));
        }
        let wrong = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        for bytes in [4097, 8192] {
            assert_eq!(to_host(KEYED, bytes), wrong);
            assert_eq!(from_host(KEYED, bytes, 8192), wrong);
        }
        let end = Sgl::Keyed { address: u64::MAX, length: 4096, key: 7, invalidate: false };
        assert_eq!(to_host(end, 4096), Err(Status::INVALID_FIELD.with_dnr()));
    }

    #[test]
    fn in_capsule_bounds() {
        let at = |offset, length| Sgl::InCapsule { offset, length };
        let length = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        let offset = Err(Status::SGL_OFFSET_INVALID.with_dnr());
        assert_eq!(from_host(at(0, 4096), 4096, 4096), Ok(HostMemory::InCapsule { offset: 0 }));
        assert_eq!(from_host(at(512, 512), 512, 1024), Ok(HostMemory::InCapsule { offset: 512 }));
        // A range list of Linux: 16 bytes of it count.
        assert_eq!(from_host(at(0, 4096), 16, 4096), Ok(HostMemory::InCapsule { offset: 0 }));
        assert_eq!(from_host(at(0, 4096), 16, 16), length);
        assert_eq!(from_host(at(513, 512), 512, 1024), length);
        assert_eq!(from_host(at(0, 512), 1024, 1024), length);
        assert_eq!(from_host(at(0, 4096), 4096, 0), length);
        assert_eq!(from_host(at(1, 4096), 4096, 0), offset);
        assert_eq!(from_host(at(u64::MAX, 512), 512, 1024), offset);
        assert_eq!(to_host(at(0, 512), 512), Err(Sgl::UNUSABLE));
    }

    #[test]
    fn nothing_and_other_kinds() {
        let length = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        for null in [Sgl::Null, Sgl::DataBlockAddress { address: 0, length: 0 }] {
            assert_eq!(to_host(null, 512), length);
            assert_eq!(from_host(null, 512, 512), length);
        }
        let other = Sgl::DataBlockAddress { address: 1, length: 512 };
        assert_eq!(to_host(other, 512), Err(Sgl::UNUSABLE));
        assert_eq!(from_host(other, 512, 512), Err(Sgl::UNUSABLE));
    }

    #[test]
    fn invalidates_only_what_was_asked_and_can_be() {
        let asked = to_host(KEYED, 4096).unwrap();
        assert_eq!(asked.response_op(true), SendOp::SendWithInvalidate { rkey: Rkey(7) });
        assert_eq!(asked.response_op(false), SendOp::Send);
        let plain = HostMemory::Keyed { address: 0, rkey: Rkey(7), invalidate: false };
        assert_eq!(plain.response_op(true), SendOp::Send);
        assert_eq!(HostMemory::None.response_op(true), SendOp::Send);
    }

    proptest! {
        #[test]
        fn whatever_comes_stays_inside_the_capsule(bytes: [u8; 16], need in 1u32..10_000, capsule in 0u32..10_000) {
            match from_host(Sgl::from_bytes(&bytes), need, capsule) {
                Ok(HostMemory::InCapsule { offset }) => prop_assert!(offset + need <= capsule),
                Ok(HostMemory::None) => prop_assert!(false),
                Ok(HostMemory::Keyed { .. }) | Err(_) => {}
            }
        }
    }
}
