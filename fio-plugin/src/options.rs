//! The engine's options as fio stores them, and the list that fio reads to know them. Names must not
//! be among fio's own: such a name silently sets fio's option. Called by `load`, `canary`, `engine`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

use crate::abi::fixed;
use crate::ffi;
use crate::settings::Given;

/// Default of the hidden option that `canary` looks at.
pub(crate) const MAGIC: c_uint = 1_279_349_057;
const MAGIC_TEXT: &CStr = c"1279349057";

/// What fio fills in. The first member is fio's own (a back pointer while it parses).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawOptions {
    fios: *mut c_void,
    traddr: *const c_char,
    subnqn: *const c_char,
    fabric: *const c_char,
    wire: *const c_char,
    hostnqn: *const c_char,
    hostid: *const c_char,
    write_mode: *const c_char,
    trsvcid: c_uint,
    nsid: c_uint,
    keep_alive_tmo: c_uint,
    connect_timeout: c_uint,
    io_timeout: c_uint,
    poll_us: c_uint,
    write_fua: c_uint,
    pub(crate) magic: c_uint,
}

impl RawOptions {
    /// What the user gave.
    pub(crate) fn given(&self) -> Given {
        // SAFETY: fio stores NULL or a C string of its own for an option of type STR_STORE.
        let text = |value: *const c_char| unsafe { ffi::text(value) };
        Given {
            traddr: text(self.traddr),
            subnqn: text(self.subnqn),
            fabric: text(self.fabric),
            wire: text(self.wire),
            hostnqn: text(self.hostnqn),
            hostid: text(self.hostid),
            write_mode: text(self.write_mode),
            trsvcid: self.trsvcid,
            nsid: self.nsid,
            keep_alive_s: self.keep_alive_tmo,
            connect_timeout_s: self.connect_timeout,
            io_timeout_s: self.io_timeout,
            poll_us: self.poll_us,
            write_fua: self.write_fua != 0,
        }
    }
}

/// One option, as it is told to fio.
pub(crate) struct Spec {
    pub(crate) name: &'static CStr,
    pub(crate) help: &'static CStr,
    pub(crate) kind: c_int,
    pub(crate) place: usize,
    pub(crate) default: Option<&'static CStr>,
    /// Largest value, 0 for any.
    pub(crate) most: u64,
}

const fn text(name: &'static CStr, help: &'static CStr, place: usize) -> Spec {
    Spec { name, help, kind: fixed::OPT_STR_STORE, place, default: None, most: 0 }
}

const fn number(
    name: &'static CStr,
    help: &'static CStr,
    place: usize,
    default: &'static CStr,
    most: u64,
) -> Spec {
    Spec { name, help, kind: fixed::OPT_INT, place, default: Some(default), most }
}

/// All of them.
pub(crate) const SPECS: [Spec; 15] = [
    text(
        c"traddr",
        c"Address of the target (IPv4, IPv6 or a host name)",
        offset_of!(RawOptions, traddr),
    ),
    number(c"trsvcid", c"Port of the target", offset_of!(RawOptions, trsvcid), c"4420", 65_535),
    text(c"subnqn", c"Name of the subsystem", offset_of!(RawOptions, subnqn)),
    number(
        c"nsid",
        c"Namespace (0: the only one of the subsystem)",
        offset_of!(RawOptions, nsid),
        c"0",
        0xffff_fffe,
    ),
    text(
        c"fabric",
        c"RDMA provider: auto, soft, ib (default auto)",
        offset_of!(RawOptions, fabric),
    ),
    text(
        c"wire",
        c"What the soft provider's packets travel over: auto, udp, shm (default auto)",
        offset_of!(RawOptions, wire),
    ),
    text(
        c"hostnqn",
        c"Name of this host (default /etc/nvme/hostnqn, else the machine's)",
        offset_of!(RawOptions, hostnqn),
    ),
    text(
        c"hostid",
        c"Identifier of this host, a UUID (default /etc/nvme/hostid, else the machine's)",
        offset_of!(RawOptions, hostid),
    ),
    number(
        c"keep_alive_tmo",
        c"Keep alive timeout in seconds (0: none)",
        offset_of!(RawOptions, keep_alive_tmo),
        c"10",
        65_535,
    ),
    number(
        c"connect_timeout",
        c"Seconds to try to connect",
        offset_of!(RawOptions, connect_timeout),
        c"10",
        3_600,
    ),
    number(
        c"io_timeout",
        c"Seconds to wait for the answer to a command",
        offset_of!(RawOptions, io_timeout),
        c"30",
        3_600,
    ),
    number(
        c"poll_us",
        c"Microseconds to poll for completions before sleeping",
        offset_of!(RawOptions, poll_us),
        c"100",
        1_000_000,
    ),
    text(
        c"write_mode",
        c"What a write does: write, or zeroes (Write Zeroes, without data)",
        offset_of!(RawOptions, write_mode),
    ),
    Spec {
        name: c"write_fua",
        help: c"Force Unit Access on each write",
        kind: fixed::OPT_BOOL,
        place: offset_of!(RawOptions, write_fua),
        default: Some(c"0"),
        most: 1,
    },
    Spec {
        name: c"lariat_abi_check",
        help: c"Not to be set",
        kind: fixed::OPT_INT,
        place: offset_of!(RawOptions, magic),
        default: Some(MAGIC_TEXT),
        most: 0,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_do_not_share_a_place_or_a_name() {
        let mut places: Vec<usize> = SPECS.iter().map(|spec| spec.place).collect();
        let mut names: Vec<&CStr> = SPECS.iter().map(|spec| spec.name).collect();
        assert!(places.iter().all(|place| *place >= size_of::<*mut c_void>()));
        places.sort_unstable();
        places.dedup();
        names.sort_unstable();
        names.dedup();
        assert_eq!((places.len(), names.len()), (SPECS.len(), SPECS.len()));
        assert_eq!(MAGIC_TEXT.to_str().unwrap().parse(), Ok(MAGIC));
    }
}
