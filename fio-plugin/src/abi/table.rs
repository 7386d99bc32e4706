//! The table: one row per release of fio, each as what it changes from the one before.

use super::Abi;

/// The releases served, oldest first.
pub(crate) const TABLE: &[Abi] =
    &[V3_30, V3_31, V3_32, V3_33, V3_34, V3_35, V3_36, V3_37, V3_38, V3_39, V3_40, V3_41, V3_42];

const V3_30: Abi = Abi {
    version: "fio-3.30",
    ioops_version: 31,
    ops_bytes: 264,
    td_eo: 4216,
    td_files: 188_832,
    td_files_index: 188_852,
    td_error: 189_032,
    td_orig_buffer: 189_056,
    td_io_ops: 189_952,
    td_io_ops_data: 189_968,
    td_verror: 191_896,
    io_u_offset: 72,
    io_u_xfer_buf: 104,
    io_u_xfer_buflen: 112,
    io_u_error: 144,
    file_engine_data: 168,
    ops_cleanup: 120,
    ops_open_file: 128,
    ops_close_file: 136,
    ops_invalidate: 144,
    ops_iomem_alloc: 184,
    ops_iomem_free: 192,
    ops_option_struct_size: 248,
    ops_options: 256,
    group_invalid: 1 << 40,
    no_offload: 32_768,
};

const V3_31: Abi = Abi { version: "fio-3.31", td_verror: 191_912, file_engine_data: 176, ..V3_30 };

const V3_32: Abi = Abi { version: "fio-3.32", ..V3_31 };

const V3_33: Abi = Abi { version: "fio-3.33", td_verror: 191_928, ..V3_32 };

const V3_34: Abi = Abi {
    version: "fio-3.34",
    ioops_version: 32,
    ops_bytes: 280,
    td_eo: 3280,
    td_files: 187_896,
    td_files_index: 187_916,
    td_error: 188_096,
    td_orig_buffer: 188_120,
    td_io_ops: 189_064,
    td_io_ops_data: 189_080,
    td_verror: 191_040,
    file_engine_data: 184,
    ops_option_struct_size: 264,
    ops_options: 272,
    ..V3_33
};

const V3_35: Abi = Abi { version: "fio-3.35", ..V3_34 };

const V3_36: Abi = Abi {
    version: "fio-3.36",
    ioops_version: 33,
    ops_bytes: 288,
    td_eo: 3304,
    td_files: 187_928,
    td_files_index: 187_948,
    td_error: 188_128,
    td_orig_buffer: 188_152,
    td_io_ops: 189_152,
    td_io_ops_data: 189_168,
    td_verror: 191_136,
    ops_option_struct_size: 272,
    ops_options: 280,
    ..V3_35
};

const V3_37: Abi = Abi { version: "fio-3.37", ..V3_36 };

const V3_38: Abi = Abi {
    version: "fio-3.38",
    ioops_version: 36,
    td_eo: 3520,
    td_files: 188_144,
    td_files_index: 188_164,
    td_error: 188_344,
    td_orig_buffer: 188_368,
    td_io_ops: 189_376,
    td_io_ops_data: 189_392,
    td_verror: 191_360,
    file_engine_data: 192,
    group_invalid: 1 << 39,
    ..V3_37
};

const V3_39: Abi = Abi { version: "fio-3.39", td_verror: 191_368, ..V3_38 };

const V3_40: Abi = Abi {
    version: "fio-3.40",
    ioops_version: 37,
    ops_bytes: 296,
    td_eo: 3528,
    td_files: 188_152,
    td_files_index: 188_172,
    td_error: 188_352,
    td_orig_buffer: 188_376,
    td_io_ops: 189_384,
    td_io_ops_data: 189_400,
    td_verror: 191_376,
    ops_option_struct_size: 280,
    ops_options: 288,
    ..V3_39
};

const V3_41: Abi = Abi {
    version: "fio-3.41",
    ioops_version: 39,
    ops_bytes: 288,
    td_eo: 3560,
    td_files: 188_184,
    td_files_index: 188_204,
    td_error: 188_384,
    td_orig_buffer: 188_408,
    td_io_ops: 189_472,
    td_io_ops_data: 189_488,
    td_verror: 191_480,
    io_u_offset: 80,
    io_u_xfer_buf: 112,
    io_u_xfer_buflen: 120,
    io_u_error: 152,
    file_engine_data: 184,
    ops_cleanup: 112,
    ops_open_file: 120,
    ops_close_file: 128,
    ops_invalidate: 136,
    ops_iomem_alloc: 176,
    ops_iomem_free: 184,
    ops_option_struct_size: 272,
    ops_options: 280,
    ..V3_40
};

const V3_42: Abi = Abi {
    version: "fio-3.42",
    td_eo: 3584,
    td_files: 188_232,
    td_files_index: 188_252,
    td_error: 188_432,
    td_orig_buffer: 188_456,
    td_io_ops: 189_520,
    td_io_ops_data: 189_536,
    td_verror: 191_552,
    no_offload: 65_536,
    ..V3_41
};
