//! One macro: a number with named values in which unknown values are kept.
//! Called by the modules that hold opcode, status and identifier tables.

/// Declares a newtype over an unsigned integer with one associated constant
/// per known value, `name()`, `KNOWN` and a `Display` that prints the
/// specification's name, or the number where it has none.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        $ty:ident($repr:ty) {
            $( $(#[$vmeta:meta])* $konst:ident = $value:expr, $name:literal; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $ty(pub $repr);

        impl $ty {
            $(
                #[doc = $name]
                $(#[$vmeta])*
                pub const $konst: Self = Self($value);
            )*

            /// Every value that has a name here.
            pub const KNOWN: &'static [Self] = &[$(Self::$konst),*];

            /// The specification's name of this value, if it is a known one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$konst => Some($name),)*
                    _ => None,
                }
            }
        }

        impl ::core::fmt::Display for $ty {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{} {:#04x}", stringify!($ty), self.0),
                }
            }
        }

        impl From<$repr> for $ty {
            fn from(value: $repr) -> Self {
                Self(value)
            }
        }

        impl From<$ty> for $repr {
            fn from(value: $ty) -> Self {
                value.0
            }
        }
    };
}

pub(crate) use open_enum;
