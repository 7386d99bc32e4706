//! Records of the Fabrics commands: Connect data and Connect results (NVMe Base
//! 2.1, 6.3). Calls `ids`, `nqn` and `status`; the target's connect path and
//! the initiator's handshake call it.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::ids::ControllerId;
use super::nqn::{NQN_FIELD_BYTES, Nqn, NqnError};
use crate::endian::{U16Le, high16, join16, low16};

/// Size of the data of a Connect.
pub const CONNECT_DATA_BYTES: usize = 1024;

/// Host identifier: 128 bits that a host keeps for life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HostId(pub [u8; 16]);

/// The data of a Connect, as it lies on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Controller asked for; FFFFh lets the subsystem choose.
    pub cntlid: U16Le,
    reserved_18: [u8; 238],
    /// Name of the subsystem, NUL-padded.
    pub subnqn: [u8; NQN_FIELD_BYTES],
    /// Name of the host, NUL-padded.
    pub hostnqn: [u8; NQN_FIELD_BYTES],
    reserved_768: [u8; 256],
}

const _: () = {
    assert!(size_of::<ConnectData>() == CONNECT_DATA_BYTES && align_of::<ConnectData>() == 1);
    assert!(offset_of!(ConnectData, cntlid) == 16);
    assert!(offset_of!(ConnectData, subnqn) == 256);
    assert!(offset_of!(ConnectData, hostnqn) == 512);
};

impl ConnectData {
    /// The data for a Connect.
    #[must_use]
    pub fn new(host_id: HostId, cntlid: ControllerId, subnqn: &Nqn, hostnqn: &Nqn) -> Self {
        Self {
            host_id: host_id.0,
            cntlid: U16Le::new(cntlid.0),
            subnqn: subnqn.to_wire_field(),
            hostnqn: hostnqn.to_wire_field(),
            ..Self::zeroed()
        }
    }

    /// From wire bytes; every 1,024 bytes are Connect data.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; CONNECT_DATA_BYTES]) -> &Self {
        bytemuck::cast_ref(bytes)
    }

    /// As wire bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; CONNECT_DATA_BYTES] {
        bytemuck::cast_ref(self)
    }

    /// Host identifier.
    #[must_use]
    pub fn host(&self) -> HostId {
        HostId(self.host_id)
    }

    /// Controller asked for.
    #[must_use]
    pub fn controller(&self) -> ControllerId {
        ControllerId(self.cntlid.get())
    }

    /// Name of the subsystem.
    ///
    /// # Errors
    /// What is wrong with the name; answer with
    /// [`ConnectInvalidParameter::SUBNQN`].
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire_field(&self.subnqn)
    }

    /// Name of the host.
    ///
    /// # Errors
    /// What is wrong with the name; answer with
    /// [`ConnectInvalidParameter::HOSTNQN`].
    pub fn host_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire_field(&self.hostnqn)
    }
}

/// Result dword 0 of a successful Connect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectResult {
    /// The controller that the queue belongs to.
    pub cntlid: ControllerId,
    /// Authentication requirements, see the constants.
    pub authreq: u16,
}

impl ConnectResult {
    /// `authreq` bit: authentication transaction required.
    pub const AUTH_TRANSACTION: u16 = 1 << 1;
    /// `authreq` bit: authentication and secure channel required.
    pub const AUTH_SECURE_CHANNEL: u16 = 1 << 2;

    /// From a completion's dword 0.
    #[must_use]
    pub const fn from_result(dword0: u32) -> Self {
        Self { cntlid: ControllerId(low16(dword0)), authreq: high16(dword0) }
    }

    /// As a completion's dword 0.
    #[must_use]
    pub const fn to_result(self) -> u32 {
        join16(self.cntlid.0, self.authreq)
    }

    /// Whether the controller demands authentication.
    #[must_use]
    pub const fn requires_authentication(self) -> bool {
        self.authreq & (Self::AUTH_TRANSACTION | Self::AUTH_SECURE_CHANNEL) != 0
    }
}

/// Result dword 0 of a Connect that failed with
/// [`Status::CONNECT_INVALID_PARAMETERS`](super::Status::CONNECT_INVALID_PARAMETERS):
/// where the wrong parameter stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectInvalidParameter {
    /// Offset of the parameter in bytes (IPO).
    pub offset: u16,
    /// Whether it stands in the data, rather than in the command (IATTR bit 0).
    pub in_data: bool,
}

impl ConnectInvalidParameter {
    /// The command's queue identifier.
    pub const QID: Self = Self { offset: 42, in_data: false };
    /// The command's queue size.
    pub const SQSIZE: Self = Self { offset: 44, in_data: false };
    /// The command's attributes.
    pub const CATTR: Self = Self { offset: 46, in_data: false };
    /// The command's keep alive timeout.
    pub const KATO: Self = Self { offset: 48, in_data: false };
    /// The data's host identifier.
    pub const HOSTID: Self = Self { offset: 0, in_data: true };
    /// The data's controller identifier.
    pub const CNTLID: Self = Self { offset: 16, in_data: true };
    /// The data's subsystem name.
    pub const SUBNQN: Self = Self { offset: 256, in_data: true };
    /// The data's host name.
    pub const HOSTNQN: Self = Self { offset: 512, in_data: true };

    /// From a completion's dword 0.
    #[must_use]
    pub const fn from_result(dword0: u32) -> Self {
        Self { offset: low16(dword0), in_data: high16(dword0) & 1 != 0 }
    }

    /// As a completion's dword 0.
    #[must_use]
    pub const fn to_result(self) -> u32 {
        join16(self.offset, if self.in_data { 1 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn captured_connect_data() {
        let mut bytes = [0u8; 1024];
        for (at, text) in [
            (0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0xff, 0xff][..]),
            (256, b"nqn.test"),
            (512, b"nqn.2014-08.org.nvmexpress:uuid:spike"),
        ] {
            bytes[at..at + text.len()].copy_from_slice(text);
        }
        let data = ConnectData::from_bytes(&bytes);
        assert_eq!(data.host().0[15], 15);
        assert_eq!(data.controller(), ControllerId::DYNAMIC);
        let subsystem = data.subsystem_nqn().unwrap();
        let host = data.host_nqn().unwrap();
        assert_eq!(subsystem.as_str(), "nqn.test");
        let built = ConnectData::new(data.host(), data.controller(), &subsystem, &host);
        assert_eq!(built.as_bytes(), &bytes);
    }

    #[test]
    fn invalid_parameters_point_at_the_fields() {
        assert_eq!(ConnectInvalidParameter::SUBNQN.to_result(), 0x0001_0100);
        assert_eq!(ConnectInvalidParameter::SQSIZE.to_result(), 44);
        let offsets = [
            (ConnectInvalidParameter::CNTLID.offset, offset_of!(ConnectData, cntlid)),
            (ConnectInvalidParameter::SUBNQN.offset, offset_of!(ConnectData, subnqn)),
            (ConnectInvalidParameter::HOSTNQN.offset, offset_of!(ConnectData, hostnqn)),
        ];
        assert!(offsets.iter().all(|&(named, real)| usize::from(named) == real));
    }

    proptest! {
        #[test]
        fn results_round_trip(dword0: u32, offset: u16, in_data: bool) {
            prop_assert_eq!(ConnectResult::from_result(dword0).to_result(), dword0);
            let invalid = ConnectInvalidParameter { offset, in_data };
            prop_assert_eq!(ConnectInvalidParameter::from_result(invalid.to_result()), invalid);
        }
    }
}
