//! Proof, before any I/O, that the table's offsets hold for the fio that runs: two values whose
//! places are known independently of it. Called by `engine` where a job starts.

use std::ffi::c_void;

use crate::ffi::Td;
use crate::options::{MAGIC, RawOptions};

/// Why this fio is not the one that the table describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("this build of {0} lays out its jobs differently from the release of that name")]
    Job(&'static str),
    #[error("this build of {0} lays out engine options differently from the release of that name")]
    Options(&'static str),
}

/// Checks that the job's engine is `ops`, and that the hidden option with the magic default can be
/// read; gives the job's options.
pub(crate) fn check(
    td: Td,
    ops: *const c_void,
    version: &'static str,
) -> Result<&'static RawOptions, Mismatch> {
    if !std::ptr::eq(td.io_ops(), ops) {
        return Err(Mismatch::Job(version));
    }
    let options = td.options().cast::<RawOptions>();
    if options.is_null() || !options.is_aligned() {
        return Err(Mismatch::Options(version));
    }
    // SAFETY: `td.io_ops()` being ours shows that `td` is laid out as the table says, so this is the
    // options structure that fio allocated for this engine, of the size that `load` told it. It
    // lives as long as the job; callers use it during their callback.
    let options: &'static RawOptions = unsafe { &*options };
    if options.magic != MAGIC {
        return Err(Mismatch::Options(version));
    }
    Ok(options)
}
