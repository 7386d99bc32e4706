//! The fio engine under stock fio against a real target on loopback: data, counts, errors, ends.
//! `LARIAT_TEST_FIO` names another fio than the one on the PATH.

use std::time::Duration;

mod ends;
mod mistakes;
mod setting;
mod workloads;

const LIMIT: Duration = Duration::from_secs(120);
