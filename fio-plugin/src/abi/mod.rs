//! Where things lie in fio's structures: facts per release, printed by `cargo xtask fio-abi` from
//! each release's own headers (x86-64, which all 64-bit Linux ABIs agree with). Offsets and sizes
//! are in bytes. Pure data; used by `ffi` and `load`.
#![forbid(unsafe_code)]

mod table;

pub(crate) use table::TABLE;

/// What differs between releases. The names are those of `abi.tsv`, shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abi {
    /// fio's `fio_version_string`.
    pub(crate) version: &'static str,
    /// What fio wants to see in the engine's table of operations.
    pub(crate) ioops_version: i32,
    pub(crate) ops_bytes: usize,
    pub(crate) td_eo: usize,
    pub(crate) td_files: usize,
    pub(crate) td_files_index: usize,
    pub(crate) td_error: usize,
    pub(crate) td_orig_buffer: usize,
    pub(crate) td_io_ops: usize,
    pub(crate) td_io_ops_data: usize,
    pub(crate) td_verror: usize,
    pub(crate) io_u_offset: usize,
    pub(crate) io_u_xfer_buf: usize,
    pub(crate) io_u_xfer_buflen: usize,
    pub(crate) io_u_error: usize,
    pub(crate) file_engine_data: usize,
    pub(crate) ops_cleanup: usize,
    pub(crate) ops_open_file: usize,
    pub(crate) ops_close_file: usize,
    pub(crate) ops_invalidate: usize,
    pub(crate) ops_iomem_alloc: usize,
    pub(crate) ops_iomem_free: usize,
    pub(crate) ops_option_struct_size: usize,
    pub(crate) ops_options: usize,
    /// The group of options that is not shown under any heading.
    pub(crate) group_invalid: u64,
    /// The flag of an engine that cannot do `io_submit_mode=offload`.
    pub(crate) no_offload: i32,
}

/// What is the same in all releases of the table.
pub(crate) mod fixed {
    pub(crate) const TD_IODEPTH: usize = 208;
    pub(crate) const TD_FILENAME: usize = 128;
    pub(crate) const TD_DDIR: usize = 176;
    pub(crate) const IO_U_FILE: usize = 32;
    pub(crate) const IO_U_DDIR: usize = 44;
    pub(crate) const FILE_TYPE: usize = 16;
    pub(crate) const FILE_NAME: usize = 40;
    pub(crate) const FILE_SIZE: usize = 48;

    pub(crate) const OPTION_BYTES: usize = 1512;
    pub(crate) const OPTION_NAME: usize = 0;
    pub(crate) const OPTION_LNAME: usize = 8;
    pub(crate) const OPTION_TYPE: usize = 24;
    pub(crate) const OPTION_OFF1: usize = 28;
    pub(crate) const OPTION_MAXVAL: usize = 56;
    pub(crate) const OPTION_MINVAL: usize = 64;
    pub(crate) const OPTION_HELP: usize = 112;
    pub(crate) const OPTION_DEF: usize = 120;
    pub(crate) const OPTION_CATEGORY: usize = 1464;
    pub(crate) const OPTION_GROUP: usize = 1472;

    pub(crate) const OPS_NAME: usize = 16;
    pub(crate) const OPS_VERSION: usize = 24;
    pub(crate) const OPS_FLAGS: usize = 28;
    pub(crate) const OPS_SETUP: usize = 40;
    pub(crate) const OPS_INIT: usize = 48;
    pub(crate) const OPS_POST_INIT: usize = 56;
    pub(crate) const OPS_QUEUE: usize = 72;
    pub(crate) const OPS_COMMIT: usize = 80;
    pub(crate) const OPS_GETEVENTS: usize = 88;
    pub(crate) const OPS_EVENT: usize = 96;

    pub(crate) const Q_COMPLETED: i32 = 0;
    pub(crate) const Q_QUEUED: i32 = 1;
    pub(crate) const Q_BUSY: i32 = 2;

    pub(crate) const DDIR_READ: i32 = 0;
    pub(crate) const DDIR_WRITE: i32 = 1;
    pub(crate) const DDIR_TRIM: i32 = 2;
    pub(crate) const DDIR_SYNC: i32 = 3;
    pub(crate) const DDIR_DATASYNC: i32 = 4;
    pub(crate) const DDIR_SYNC_FILE_RANGE: i32 = 5;
    /// The bits of a job's directions that move data.
    pub(crate) const TD_DDIR_RW: i32 = 3;

    pub(crate) const OPT_STR_STORE: i32 = 6;
    pub(crate) const OPT_INT: i32 = 8;
    pub(crate) const OPT_BOOL: i32 = 10;
    pub(crate) const CATEGORY_ENGINE: u64 = 64;

    pub(crate) const DISKLESSIO: i32 = 4;
    pub(crate) const NOEXTEND: i32 = 8;
    pub(crate) const NODISKUTIL: i32 = 16;
    pub(crate) const MEMALIGN: i32 = 512;

    pub(crate) const TYPE_BLOCK: i32 = 2;
    pub(crate) const VERROR_BYTES: usize = 128;
}

/// The row of the release that calls itself `version`; it must match to the letter, because
/// releases that share fio's own engine version differ in what lies where.
pub(crate) fn find(version: &str) -> Option<&'static Abi> {
    TABLE.iter().find(|abi| abi.version == version)
}

/// The releases served, for messages.
pub(crate) fn served() -> String {
    let names: Vec<&str> = TABLE.iter().map(|abi| abi.version).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::fixed::*;
    use super::*;

    fn row_of(abi: &Abi) -> Vec<(&'static str, u64)> {
        let wide = |value: usize| value as u64;
        let int = |value: i32| u64::try_from(value).unwrap();
        vec![
            ("FIO_IOOPS_VERSION", int(abi.ioops_version)),
            ("sizeof.ioengine_ops", wide(abi.ops_bytes)),
            ("thread_data.eo", wide(abi.td_eo)),
            ("thread_data.files", wide(abi.td_files)),
            ("thread_data.files_index", wide(abi.td_files_index)),
            ("thread_data.error", wide(abi.td_error)),
            ("thread_data.orig_buffer", wide(abi.td_orig_buffer)),
            ("thread_data.io_ops", wide(abi.td_io_ops)),
            ("thread_data.io_ops_data", wide(abi.td_io_ops_data)),
            ("thread_data.verror", wide(abi.td_verror)),
            ("io_u.offset", wide(abi.io_u_offset)),
            ("io_u.xfer_buf", wide(abi.io_u_xfer_buf)),
            ("io_u.xfer_buflen", wide(abi.io_u_xfer_buflen)),
            ("io_u.error", wide(abi.io_u_error)),
            ("fio_file.engine_data", wide(abi.file_engine_data)),
            ("ioengine_ops.cleanup", wide(abi.ops_cleanup)),
            ("ioengine_ops.open_file", wide(abi.ops_open_file)),
            ("ioengine_ops.close_file", wide(abi.ops_close_file)),
            ("ioengine_ops.invalidate", wide(abi.ops_invalidate)),
            ("ioengine_ops.iomem_alloc", wide(abi.ops_iomem_alloc)),
            ("ioengine_ops.iomem_free", wide(abi.ops_iomem_free)),
            ("ioengine_ops.option_struct_size", wide(abi.ops_option_struct_size)),
            ("ioengine_ops.options", wide(abi.ops_options)),
            ("const.FIO_OPT_G_INVALID", abi.group_invalid),
            ("const.FIO_NO_OFFLOAD", int(abi.no_offload)),
            ("thread_data.o.iodepth", wide(TD_IODEPTH)),
            ("thread_data.o.filename", wide(TD_FILENAME)),
            ("thread_data.o.td_ddir", wide(TD_DDIR)),
            ("io_u.file", wide(IO_U_FILE)),
            ("io_u.ddir", wide(IO_U_DDIR)),
            ("fio_file.filetype", wide(FILE_TYPE)),
            ("fio_file.file_name", wide(FILE_NAME)),
            ("fio_file.real_file_size", wide(FILE_SIZE)),
            ("sizeof.fio_option", wide(OPTION_BYTES)),
            ("fio_option.name", wide(OPTION_NAME)),
            ("fio_option.lname", wide(OPTION_LNAME)),
            ("fio_option.type", wide(OPTION_TYPE)),
            ("fio_option.off1", wide(OPTION_OFF1)),
            ("fio_option.maxval", wide(OPTION_MAXVAL)),
            ("fio_option.minval", wide(OPTION_MINVAL)),
            ("fio_option.help", wide(OPTION_HELP)),
            ("fio_option.def", wide(OPTION_DEF)),
            ("fio_option.category", wide(OPTION_CATEGORY)),
            ("fio_option.group", wide(OPTION_GROUP)),
            ("ioengine_ops.name", wide(OPS_NAME)),
            ("ioengine_ops.version", wide(OPS_VERSION)),
            ("ioengine_ops.flags", wide(OPS_FLAGS)),
            ("ioengine_ops.setup", wide(OPS_SETUP)),
            ("ioengine_ops.init", wide(OPS_INIT)),
            ("ioengine_ops.post_init", wide(OPS_POST_INIT)),
            ("ioengine_ops.queue", wide(OPS_QUEUE)),
            ("ioengine_ops.commit", wide(OPS_COMMIT)),
            ("ioengine_ops.getevents", wide(OPS_GETEVENTS)),
            ("ioengine_ops.event", wide(OPS_EVENT)),
            ("const.FIO_Q_COMPLETED", int(Q_COMPLETED)),
            ("const.FIO_Q_QUEUED", int(Q_QUEUED)),
            ("const.FIO_Q_BUSY", int(Q_BUSY)),
            ("const.DDIR_READ", int(DDIR_READ)),
            ("const.DDIR_WRITE", int(DDIR_WRITE)),
            ("const.DDIR_TRIM", int(DDIR_TRIM)),
            ("const.DDIR_SYNC", int(DDIR_SYNC)),
            ("const.DDIR_DATASYNC", int(DDIR_DATASYNC)),
            ("const.DDIR_SYNC_FILE_RANGE", int(DDIR_SYNC_FILE_RANGE)),
            ("const.TD_DDIR_RW", int(TD_DDIR_RW)),
            ("const.FIO_OPT_STR_STORE", int(OPT_STR_STORE)),
            ("const.FIO_OPT_INT", int(OPT_INT)),
            ("const.FIO_OPT_BOOL", int(OPT_BOOL)),
            ("const.FIO_OPT_C_ENGINE", CATEGORY_ENGINE),
            ("const.FIO_DISKLESSIO", int(DISKLESSIO)),
            ("const.FIO_NOEXTEND", int(NOEXTEND)),
            ("const.FIO_NODISKUTIL", int(NODISKUTIL)),
            ("const.FIO_MEMALIGN", int(MEMALIGN)),
            ("const.FIO_TYPE_BLOCK", int(TYPE_BLOCK)),
            ("const.FIO_VERROR_SIZE", wide(VERROR_BYTES)),
        ]
    }

    /// `abi.tsv` is what the headers of the releases say; the table must say the same.
    #[test]
    fn the_table_is_what_fios_headers_say() {
        let text = include_str!("../../abi.tsv");
        let mut lines = text.lines().map(|line| line.split('\t'));
        let releases: Vec<&str> = lines.next().unwrap().skip(1).collect();
        let rows: BTreeMap<&str, Vec<u64>> = lines
            .map(|mut line| (line.next().unwrap(), line.map(|v| v.parse().unwrap()).collect()))
            .collect();
        let known: Vec<String> = releases.iter().map(|release| format!("fio-{release}")).collect();
        let served: Vec<&str> = TABLE.iter().map(|abi| abi.version).collect();
        assert_eq!(served, known);
        // fio's own size of a file is in the record for people; nothing here depends on it.
        let unused = ["sizeof.thread_data", "sizeof.fio_file"];
        for (column, abi) in TABLE.iter().enumerate() {
            let row = row_of(abi);
            assert_eq!(row.len() + unused.len(), rows.len());
            for (name, value) in row {
                assert_eq!(value, rows[name][column], "{name} of {}", abi.version);
            }
        }
    }

    #[test]
    fn versions_match_to_the_letter() {
        assert_eq!(find("fio-3.33").unwrap().ioops_version, 31);
        // Same engine version, other layout.
        assert_ne!(
            find("fio-3.30").unwrap().file_engine_data,
            find("fio-3.33").unwrap().file_engine_data
        );
        for unknown in ["", "fio-3.3", "fio-3.333", "fio-3.33-dirty", "3.33", "fio-3.29", "fio-4.0"]
        {
            assert!(find(unknown).is_none(), "{unknown}");
        }
        assert!(served().starts_with("fio-3.30, fio-3.31"));
    }
}
