//! nvme-cli's files of the host's identity, for programs that keep to its defaults: the command
//! line and the fio engine. The library itself does not read them.

/// The host's name.
pub const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";

/// The host's identifier, a UUID.
pub const HOST_ID_FILE: &str = "/etc/nvme/hostid";

/// The first line of a file without white space around it; none if it cannot be read or is empty.
#[must_use]
pub fn line_of(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}
