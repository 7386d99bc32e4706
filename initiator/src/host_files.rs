//! nvme-cli's files of the host's identity, for programs that keep to its defaults: the command
//! line and the fio engine. The library itself does not read them.

/// The host's name.
pub const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";

/// The host's identifier, a UUID.
pub const HOST_ID_FILE: &str = "/etc/nvme/hostid";

/// Where the name of this host comes from, for who is refused by it: `option` is what sets it (`-q`),
/// `given` whether it was given.
#[must_use]
pub fn host_nqn_origin(option: &str, given: bool) -> String {
    if given {
        format!("it is what {option} says")
    } else if line_of(HOST_NQN_FILE).is_some() {
        format!("it stands in {HOST_NQN_FILE}, {option} sets another")
    } else {
        format!(
            "it is derived from this machine since there is no {HOST_NQN_FILE}, {option} sets another"
        )
    }
}

/// The first line of a file without white space around it; none if it cannot be read or is empty.
#[must_use]
pub fn line_of(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_of_a_name_says_how_to_change_it() {
        assert_eq!(host_nqn_origin("-q", true), "it is what -q says");
        let words = host_nqn_origin("hostnqn=", false);
        assert!(
            words.contains(HOST_NQN_FILE) && words.ends_with("hostnqn= sets another"),
            "{words}"
        );
        assert_eq!(words.contains("derived"), line_of(HOST_NQN_FILE).is_none(), "{words}");
    }
}
