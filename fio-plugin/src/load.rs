//! How fio gets hold of the engine: the exported `get_ioengine`, and the two statics that fio reads
//! and writes, filled in once for the release that runs. Called by fio.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::abi::{self, Abi, fixed};
use crate::engine;
use crate::ffi::{complain, guard, symbol, text};
use crate::options::{RawOptions, SPECS, Spec};

const OPS_BYTES: usize = 296;
const LIST_BYTES: usize = (SPECS.len() + 1) * fixed::OPTION_BYTES;

/// Memory that this library fills in before fio knows of it, and fio reads and writes from then on.
#[repr(C, align(64))]
struct ForFio<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: written here only by the one thread that gets to fill `ABI`, before `get_ioengine` has
// returned the address for the first time; afterwards it is fio's alone.
unsafe impl<const BYTES: usize> Sync for ForFio<BYTES> {}

/// `struct ioengine_ops`.
static OPS: ForFio<OPS_BYTES> = ForFio(UnsafeCell::new([0; OPS_BYTES]));
/// The array of `struct fio_option`, ended by one without a name.
static OPTIONS: ForFio<LIST_BYTES> = ForFio(UnsafeCell::new([0; LIST_BYTES]));
/// The row that holds, or `None` where no row does. Written once.
static ABI: OnceLock<Option<&'static Abi>> = OnceLock::new();

impl<const BYTES: usize> ForFio<BYTES> {
    fn address(&self) -> *mut c_void {
        self.0.get().cast()
    }

    /// # Safety
    /// Nobody else uses this memory meanwhile.
    unsafe fn set<T>(&self, offset: usize, value: T) {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= BYTES);
        // SAFETY: in bounds and aligned by the assertion (the whole is aligned to 64), and the
        // caller's promise.
        unsafe { self.address().byte_add(offset).cast::<T>().write(value) }
    }
}

/// The row of the table that holds; there is one in any callback.
pub(crate) fn current() -> Option<&'static Abi> {
    ABI.get().copied().flatten()
}

/// The address that fio knows the engine by.
pub(crate) fn ops() -> *const c_void {
    OPS.address()
}

/// What fio looks up in an external engine. Leaves `out` as it is where the engine cannot serve
/// this fio, after one line that says why.
///
/// # Safety
/// `out` is valid for a write, as fio's is.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn get_ioengine(out: *mut *mut c_void) {
    guard((), || {
        let chosen = *ABI.get_or_init(|| {
            let abi = choose()?;
            // SAFETY: `get_or_init` runs this in one thread once, before the address is given out.
            unsafe { fill(abi) };
            Some(abi)
        });
        if chosen.is_some() && !out.is_null() {
            // SAFETY: the caller's promise.
            unsafe { out.write(OPS.address()) };
        }
    });
}

/// Finds the row for the fio that runs.
fn choose() -> Option<&'static Abi> {
    let Some(version) = version() else {
        complain(
            "this program does not name its version (fio_version_string); the engine is for fio",
        );
        return None;
    };
    let found = abi::find(&version);
    if found.is_none() {
        complain(&format!(
            "this is {version}, which the engine does not know; it serves {}",
            abi::served()
        ));
    }
    found
}

fn version() -> Option<String> {
    // A test may say what fio is not.
    #[cfg(debug_assertions)]
    if let Ok(version) = std::env::var("LARIAT_FIO_VERSION") {
        return Some(version);
    }
    let version = symbol(c"fio_version_string")?;
    // SAFETY: fio defines it as an array of char that ends in a zero.
    unsafe { text(version.as_ptr().cast::<c_char>()) }
}

/// Writes both statics.
///
/// # Safety
/// Nobody else uses them meanwhile.
unsafe fn fill(abi: &'static Abi) {
    let flags =
        fixed::DISKLESSIO | fixed::NOEXTEND | fixed::NODISKUTIL | fixed::MEMALIGN | abi.no_offload;
    // SAFETY: the caller's promise; each value has the type that fio's structure has there.
    unsafe {
        OPS.set(fixed::OPS_NAME, c"lariat".as_ptr());
        OPS.set::<c_int>(fixed::OPS_VERSION, abi.ioops_version);
        OPS.set::<c_int>(fixed::OPS_FLAGS, flags);
        OPS.set::<engine::OnTd>(fixed::OPS_SETUP, engine::setup);
        OPS.set::<engine::OnTd>(fixed::OPS_INIT, engine::init);
        OPS.set::<engine::OnTd>(fixed::OPS_POST_INIT, engine::post_init);
        OPS.set::<engine::Queue>(fixed::OPS_QUEUE, engine::queue);
        OPS.set::<engine::OnTd>(fixed::OPS_COMMIT, engine::commit);
        OPS.set::<engine::GetEvents>(fixed::OPS_GETEVENTS, engine::getevents);
        OPS.set::<engine::Event>(fixed::OPS_EVENT, engine::event);
        OPS.set::<engine::Ended>(abi.ops_cleanup, engine::cleanup);
        OPS.set::<engine::OnFile>(abi.ops_open_file, engine::nothing_to_do);
        OPS.set::<engine::OnFile>(abi.ops_close_file, engine::nothing_to_do);
        OPS.set::<engine::OnFile>(abi.ops_invalidate, engine::nothing_to_do);
        OPS.set::<engine::Allocate>(abi.ops_iomem_alloc, engine::iomem_alloc);
        OPS.set::<engine::Ended>(abi.ops_iomem_free, engine::iomem_free);
        OPS.set::<c_int>(abi.ops_option_struct_size, OPTION_STRUCT_BYTES);
        OPS.set(abi.ops_options, OPTIONS.address());
        for (at, spec) in SPECS.iter().enumerate() {
            fill_option(at * fixed::OPTION_BYTES, spec, abi);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "checked by the assertion beside it")]
const OPTION_STRUCT_BYTES: c_int = size_of::<RawOptions>() as c_int;
const _: () = assert!(size_of::<RawOptions>() < 4096);

/// Writes one option.
///
/// # Safety
/// Nobody else uses the static meanwhile.
unsafe fn fill_option(base: usize, spec: &Spec, abi: &Abi) {
    let place = c_uint::try_from(spec.place).unwrap_or(0);
    let default = spec.default.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the caller's promise; each value has the type that fio's structure has there.
    unsafe {
        OPTIONS.set(base + fixed::OPTION_NAME, spec.name.as_ptr());
        OPTIONS.set(base + fixed::OPTION_LNAME, spec.name.as_ptr());
        OPTIONS.set::<c_int>(base + fixed::OPTION_TYPE, spec.kind);
        OPTIONS.set::<c_uint>(base + fixed::OPTION_OFF1, place);
        OPTIONS.set::<u64>(base + fixed::OPTION_MAXVAL, spec.most);
        OPTIONS.set::<c_int>(base + fixed::OPTION_MINVAL, 0);
        OPTIONS.set(base + fixed::OPTION_HELP, spec.help.as_ptr());
        OPTIONS.set(base + fixed::OPTION_DEF, default);
        OPTIONS.set::<u64>(base + fixed::OPTION_CATEGORY, fixed::CATEGORY_ENGINE);
        OPTIONS.set::<u64>(base + fixed::OPTION_GROUP, abi.group_invalid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_static_holds_the_operations_of_each_release() {
        for abi in abi::TABLE {
            assert!(abi.ops_bytes <= OPS_BYTES, "{}", abi.version);
            for place in [abi.ops_options, abi.ops_iomem_free] {
                assert!(place + size_of::<*const c_void>() <= abi.ops_bytes, "{}", abi.version);
            }
        }
    }

    #[test]
    fn outside_fio_the_engine_is_not_given_out() {
        let mut out = std::ptr::null_mut();
        // SAFETY: `out` is a local.
        unsafe { get_ioengine(&raw mut out) };
        assert!(out.is_null());
        assert!(current().is_none());
    }
}
