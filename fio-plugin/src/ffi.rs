//! fio's structures, seen through the table of offsets; fio's log; the net under each callback. All
//! that is assumed of pointers from fio is promised once, where a view is made. Called by `engine`,
//! `canary` and `load`.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::abi::{Abi, fixed};

/// Bytes at an address that fio gave, read and written by offset.
#[derive(Clone, Copy, Debug)]
struct Raw(NonNull<u8>);

impl Raw {
    /// # Safety
    /// At `offset` lies a `T` that is initialised and aligned.
    unsafe fn get<T: Copy>(self, offset: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset).cast::<T>().read() }
    }

    /// # Safety
    /// At `offset` lies a `T`, aligned and writable.
    unsafe fn set<T>(self, offset: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset).cast::<T>().write(value) }
    }
}

/// A job of fio: `struct thread_data`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Td {
    raw: Raw,
    abi: &'static Abi,
}

impl Td {
    /// # Safety
    /// `td` is the `thread_data` that fio passed to a callback, of the release that `abi` describes;
    /// the value is used during that callback only, by its thread.
    pub(crate) unsafe fn new(td: *mut c_void, abi: &'static Abi) -> Option<Self> {
        Some(Self { raw: Raw(NonNull::new(td.cast())?), abi })
    }

    /// The engine that fio thinks this job uses.
    pub(crate) fn io_ops(self) -> *const c_void {
        // SAFETY: promised in `new`: a pointer lies there.
        unsafe { self.raw.get(self.abi.td_io_ops) }
    }

    /// The engine's options, as fio filled them in.
    pub(crate) fn options(self) -> *const c_void {
        // SAFETY: promised in `new`: a pointer lies there.
        unsafe { self.raw.get(self.abi.td_eo) }
    }

    /// What this engine keeps with the job.
    pub(crate) fn data(self) -> *mut c_void {
        // SAFETY: promised in `new`: a pointer lies there.
        unsafe { self.raw.get(self.abi.td_io_ops_data) }
    }

    pub(crate) fn set_data(self, data: *mut c_void) {
        // SAFETY: promised in `new`; the field is the engine's own.
        unsafe { self.raw.set(self.abi.td_io_ops_data, data) }
    }

    pub(crate) fn iodepth(self) -> u32 {
        // SAFETY: promised in `new`: an unsigned int lies there.
        unsafe { self.raw.get::<c_uint>(fixed::TD_IODEPTH) }
    }

    /// Whether the job reads or writes (and not only trims).
    pub(crate) fn moves_data(self) -> bool {
        // SAFETY: promised in `new`: an enum of the size of an int lies there.
        unsafe { self.raw.get::<c_int>(fixed::TD_DDIR) & fixed::TD_DDIR_RW != 0 }
    }

    /// Whether the user named files himself; else fio made names up.
    pub(crate) fn has_filename(self) -> bool {
        // SAFETY: promised in `new`: a pointer lies there.
        unsafe { !self.raw.get::<*const c_char>(fixed::TD_FILENAME).is_null() }
    }

    /// The memory of the job's buffers.
    pub(crate) fn buffer(self) -> *mut c_void {
        // SAFETY: promised in `new`: a pointer lies there.
        unsafe { self.raw.get(self.abi.td_orig_buffer) }
    }

    pub(crate) fn set_buffer(self, buffer: *mut c_void) {
        // SAFETY: promised in `new`; an engine with iomem_alloc sets this field.
        unsafe { self.raw.set(self.abi.td_orig_buffer, buffer) }
    }

    /// Tells fio how the job failed, unless it knows already.
    pub(crate) fn set_error(self, errno: i32, words: &str) {
        // SAFETY: promised in `new`: an int lies there, and an array of VERROR_BYTES.
        unsafe {
            if self.raw.get::<c_int>(self.abi.td_error) != 0 {
                return;
            }
            self.raw.set::<c_int>(self.abi.td_error, errno);
            let mut text = [0u8; fixed::VERROR_BYTES];
            let room = fixed::VERROR_BYTES - 1;
            for (to, from) in text.iter_mut().take(room).zip(words.bytes()) {
                *to = from;
            }
            self.raw.set(self.abi.td_verror, text);
        }
    }

    /// The job's files.
    pub(crate) fn files(self) -> impl Iterator<Item = File> {
        // SAFETY: promised in `new`: an array of `files_index` pointers to `fio_file`.
        let (list, count) = unsafe {
            let list = self.raw.get::<*const *mut c_void>(self.abi.td_files);
            (list, self.raw.get::<c_uint>(self.abi.td_files_index))
        };
        let count = if list.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
        let abi = self.abi;
        (0..count).filter_map(move |at| {
            // SAFETY: as above; `at` is below the count.
            let file = unsafe { list.add(at).read() };
            Some(File { raw: Raw(NonNull::new(file.cast())?), abi })
        })
    }
}

/// A file of a job: `struct fio_file`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    raw: Raw,
    abi: &'static Abi,
}

impl File {
    pub(crate) fn name(self) -> String {
        // SAFETY: the view comes from `Td` or `IoU`: a pointer to a C string, or NULL, lies there.
        unsafe { text(self.raw.get(fixed::FILE_NAME)) }.unwrap_or_default()
    }

    /// Tells fio the size, and that this is a block device (which it may trim).
    pub(crate) fn set_size(self, bytes: u64) {
        // SAFETY: the view comes from `Td` or `IoU`: a u64 and an enum of an int's size.
        unsafe {
            self.raw.set(fixed::FILE_SIZE, bytes);
            self.raw.set::<c_int>(fixed::FILE_TYPE, fixed::TYPE_BLOCK);
        }
    }

    /// Which of the job's disks it stands for.
    pub(crate) fn disk(self) -> usize {
        // SAFETY: the view comes from `Td` or `IoU`; the field is the engine's own, 8 bytes wide.
        unsafe { self.raw.get(self.abi.file_engine_data) }
    }

    pub(crate) fn set_disk(self, disk: usize) {
        // SAFETY: as in `disk`.
        unsafe { self.raw.set(self.abi.file_engine_data, disk) }
    }
}

/// One I/O of fio: `struct io_u`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoU {
    raw: Raw,
    abi: &'static Abi,
}

impl IoU {
    /// # Safety
    /// `io_u` is one that fio passed to `queue` and was not given back since, of the release that
    /// `abi` describes; used by its job's thread.
    pub(crate) unsafe fn new(io_u: *mut c_void, abi: &'static Abi) -> Option<Self> {
        Some(Self { raw: Raw(NonNull::new(io_u.cast())?), abi })
    }

    pub(crate) fn address(self) -> *mut c_void {
        self.raw.0.as_ptr().cast()
    }

    pub(crate) fn direction(self) -> i32 {
        // SAFETY: promised in `new`: an enum of an int's size lies there.
        unsafe { self.raw.get::<c_int>(fixed::IO_U_DDIR) }
    }

    pub(crate) fn file(self) -> Option<File> {
        // SAFETY: promised in `new`: a pointer to one of the job's files, or NULL.
        let file = unsafe { self.raw.get::<*mut c_void>(fixed::IO_U_FILE) };
        Some(File { raw: Raw(NonNull::new(file.cast())?), abi: self.abi })
    }

    pub(crate) fn offset(self) -> u64 {
        // SAFETY: promised in `new`: an unsigned long long lies there.
        unsafe { self.raw.get(self.abi.io_u_offset) }
    }

    pub(crate) fn length(self) -> u64 {
        // SAFETY: promised in `new`: an unsigned long long lies there.
        unsafe { self.raw.get(self.abi.io_u_xfer_buflen) }
    }

    /// Where the data is or goes; only its address is used.
    pub(crate) fn buffer(self) -> *const c_void {
        // SAFETY: promised in `new`: a pointer lies there.
        unsafe { self.raw.get(self.abi.io_u_xfer_buf) }
    }

    pub(crate) fn set_error(self, errno: i32) {
        // SAFETY: promised in `new`: an int lies there, for the engine to set.
        unsafe { self.raw.set::<c_int>(self.abi.io_u_error, errno) }
    }
}

/// A C string's text.
///
/// # Safety
/// `text` is NULL or points to a C string that stays as it is during the call.
pub(crate) unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A symbol of the running program. Such a look-up, and not linking: the library then loads into
/// any program, and can say what is missing.
pub(crate) fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: `name` is a C string; RTLD_DEFAULT needs no handle.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// One line into fio's error log, where its own messages go.
pub(crate) fn complain(words: &str) {
    type LogErr = unsafe extern "C" fn(*const c_char, ...) -> isize;
    let line = CString::new(format!("lariat: {}\n", words.replace(['\n', '\0'], " ")));
    match (symbol(c"log_err"), line) {
        (Some(log), Ok(line)) => {
            // SAFETY: `log_err` has had this signature in all releases of the table; "%s" takes the
            // C string that follows.
            unsafe {
                let log = std::mem::transmute::<*mut c_void, LogErr>(log.as_ptr());
                log(c"%s".as_ptr(), line.as_ptr());
            }
        }
        _ => eprintln!("lariat: {words}"),
    }
}

/// Runs a callback's body; a panic becomes a message and `fallback`, for unwinding must not reach
/// fio's frames.
pub(crate) fn guard<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    // What a panic may leave half done is the job's own state, and fio ends the job.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        let _ = catch_unwind(|| complain("internal error, see above; please report it"));
        fallback
    })
}
