//! One macro: a fixed layout with its size and offsets checked by the compiler.
//! Called by the modules that hold Identify data and log pages.

/// Declares a `#[repr(C)]` Pod structure of alignment 1. Each field names its
/// offset, and the structure its size; the compiler checks all of them. Reserved
/// fields are private. Adds zeroed `Default`, `from_bytes` and `as_bytes`.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $name:ident[$size:literal] {
            $( $(#[$fmeta:meta])* $at:literal $vis:vis $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, ::bytemuck::Pod, ::bytemuck::Zeroable)]
        #[repr(C)]
        pub struct $name {
            $( $(#[$fmeta])* $vis $field: $ty, )*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size && align_of::<$name>() == 1);
            $( assert!(::core::mem::offset_of!($name, $field) == $at); )*
        };

        impl Default for $name {
            fn default() -> Self {
                ::bytemuck::Zeroable::zeroed()
            }
        }

        impl $name {
            /// Size on the wire in bytes.
            pub const BYTES: usize = $size;

            /// The structure in wire bytes: any bytes are one.
            #[must_use]
            pub fn from_bytes(bytes: &[u8; $size]) -> &Self {
                ::bytemuck::cast_ref(bytes)
            }

            /// Copies the structure from the start of `bytes`; `None` when they
            /// are too few.
            #[must_use]
            pub fn read_from(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk::<$size>().map(|chunk| *Self::from_bytes(chunk))
            }

            /// As wire bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $size] {
                ::bytemuck::cast_ref(self)
            }
        }
    };
}

pub(crate) use layout;
