//! fio unloads its engines when a job ends; threads and thread-local destructors of this library
//! may still be on their way out then. The linker marks it as one that stays.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
