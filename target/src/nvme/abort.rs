//! The Abort command's answer (NVMe Base 2.1, 5.1.1). Called by `controller`.
//!
//! Only held Asynchronous Event Requests can be aborted: every other command is on its way through
//! storage, where nothing can be called back, and will complete by itself.

use lariat_wire::nvme::{CommandId, Qid};

/// Abort commands that may be outstanding, zero-based (ACL). They complete at once.
pub(super) const ABORT_LIMIT: u8 = 3;

/// Takes the command to abort out of the held ones. The result dword's bit 0 is the inverse of
/// what this returns: set where the command was not aborted.
#[must_use]
pub(super) fn take_held(held: &mut Vec<CommandId>, sqid: Qid, cid: CommandId) -> bool {
    if !sqid.is_admin() {
        return false;
    }
    match held.iter().position(|waiting| *waiting == cid) {
        Some(at) => {
            held.remove(at);
            true
        }
        None => false,
    }
}
