//! The 16-byte completion queue entry, which over fabrics is the whole response
//! capsule (NVMe Base 2.1, 4.2). Calls `status` and `ids`; both ends call it.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::ids::{CommandId, Qid};
use super::status::Status;
use crate::endian::{U16Le, U64Le, split32};

/// Size of a completion on the wire.
pub const COMPLETION_BYTES: usize = 16;

/// A completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Completion {
    /// Command-specific result, dwords 0 and 1.
    pub result: U64Le,
    /// Submission queue head, an index below the queue's size; reserved where the
    /// host disabled submission queue flow control.
    pub sq_head: U16Le,
    /// Submission queue identifier; reserved over fabrics.
    pub sq_id: U16Le,
    /// Identifier of the command that completed.
    pub cid: U16Le,
    /// Status in bits 15:1; bit 0 is the phase tag, reserved over fabrics.
    pub status_field: U16Le,
}

const _: () = {
    assert!(size_of::<Completion>() == COMPLETION_BYTES && align_of::<Completion>() == 1);
    assert!(offset_of!(Completion, sq_head) == 8);
    assert!(offset_of!(Completion, sq_id) == 10);
    assert!(offset_of!(Completion, cid) == 12);
    assert!(offset_of!(Completion, status_field) == 14);
};

impl Completion {
    /// A successful completion with result 0 and queue head 0.
    #[must_use]
    pub fn success(cid: CommandId) -> Self {
        Self { cid: U16Le::new(cid.0), ..Self::default() }
    }

    /// A completion of `cid` with `status`.
    #[must_use]
    pub fn failure(cid: CommandId, status: Status) -> Self {
        Self::success(cid).with_status(status)
    }

    /// From wire bytes; every 16 bytes are a completion.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; COMPLETION_BYTES]) -> Self {
        bytemuck::cast(*bytes)
    }

    /// As wire bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; COMPLETION_BYTES] {
        bytemuck::cast(self)
    }

    /// With another status; the phase bit is kept.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status_field.set(status.to_field(self.phase()));
        self
    }

    /// With a 64-bit result.
    #[must_use]
    pub fn with_result(mut self, result: u64) -> Self {
        self.result.set(result);
        self
    }

    /// With a result in dword 0, dword 1 zero.
    #[must_use]
    pub fn with_result32(self, dword0: u32) -> Self {
        self.with_result(u64::from(dword0))
    }

    /// With the submission queue head.
    #[must_use]
    pub fn with_sq_head(mut self, head: u16) -> Self {
        self.sq_head.set(head);
        self
    }

    /// With the submission queue identifier.
    #[must_use]
    pub fn with_sq_id(mut self, qid: Qid) -> Self {
        self.sq_id.set(qid.0);
        self
    }

    /// The status, without the phase bit.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status_field.get()).0
    }

    /// Bit 0 of the status field.
    #[must_use]
    pub fn phase(&self) -> bool {
        Status::from_field(self.status_field.get()).1
    }

    /// Identifier of the command that completed.
    #[must_use]
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// Dword 0 of the result.
    #[must_use]
    pub fn result32(&self) -> u32 {
        split32(self.result.get()).0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_of_a_captured_completion() {
        // A kernel target's answer to Property Get of CAP.
        let bytes = [0x7f, 0, 0, 0x0f, 0x20, 0x08, 0, 0, 0x02, 0, 0, 0, 0x02, 0, 0, 0];
        let completion = Completion::from_bytes(&bytes);
        assert_eq!(completion.result.get(), 0x0000_0820_0f00_007f);
        assert_eq!(completion.sq_head.get(), 2);
        assert_eq!(completion.command_id(), CommandId(2));
        assert!(completion.status().is_success());
        let built =
            Completion::success(CommandId(2)).with_result(0x0000_0820_0f00_007f).with_sq_head(2);
        assert_eq!(built.to_bytes(), bytes);
    }

    #[test]
    fn status_keeps_the_phase_bit() {
        let mut completion = Completion::success(CommandId(9));
        completion.status_field.set(1);
        let failed = completion.with_status(Status::LBA_OUT_OF_RANGE);
        assert!(failed.phase());
        assert_eq!(failed.status(), Status::LBA_OUT_OF_RANGE);
        assert_eq!(failed.status_field.get(), 0x101);
    }

    proptest! {
        #[test]
        fn round_trip(bytes: [u8; 16]) {
            prop_assert_eq!(Completion::from_bytes(&bytes).to_bytes(), bytes);
        }
    }
}
