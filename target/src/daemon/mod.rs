//! `lariatd` as a library: configuration, threads, signals. The binary calls [`Config::load`] and
//! [`run()`].
//!
//! ```text
//! config    TOML and environment -> Config
//! provider  which listeners go to RDMA devices, which to the soft provider
//! run       Config -> storage, fabric, registry, one thread per reactor; the end
//! files     whether the backends' files are still in their places
//! turn      the loop of a reactor: poll, and sleep when there is nothing to do
//! ```

pub mod config;
mod files;
mod provider;
mod run;
mod turn;

pub use config::{Config, ConfigError};
pub use run::{RunError, block_signals, run};
