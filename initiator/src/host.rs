//! Who this host is, where the user does not say: a name and an identifier that stay the same for
//! the life of the machine. Reads `/etc/machine-id`; called by `options`.

use lariat_wire::nvme::{HostId, Nqn};

/// Where systemd and others keep the machine's identity.
const MACHINE_ID: &str = "/etc/machine-id";

/// The host identifier: derived from the machine's identity (which itself stays private), or random
/// where there is none.
#[must_use]
pub fn default_host_id() -> HostId {
    let machine = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
    let machine = machine.trim();
    if machine.is_empty() {
        return HostId(uuid::Uuid::new_v4().into_bytes());
    }
    HostId(derived(machine))
}

/// The host's name, of the form `nqn.2014-08.org.nvmexpress:uuid:...`, from the same identity.
#[must_use]
pub fn default_host_nqn() -> Nqn {
    Nqn::from_uuid(default_host_id().0)
}

/// A UUID of version 8 (RFC 9562, 5.8: contents of the application's choice) from a text: FNV-1a
/// with 128 bits.
fn derived(machine: &str) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = b"lariat host "
        .iter()
        .chain(machine.as_bytes())
        .fold(OFFSET, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    uuid::Builder::from_custom_bytes(hash.to_be_bytes()).into_uuid().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_stable_and_tells_machines_apart() {
        let one = derived("0123456789abcdef0123456789abcdef");
        assert_eq!(one, derived("0123456789abcdef0123456789abcdef"));
        assert_ne!(one, derived("0123456789abcdef0123456789abcdee"));
        let id = uuid::Uuid::from_bytes(one);
        assert_eq!(id.get_version_num(), 8);
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
        let name = Nqn::from_uuid(one);
        assert!(name.as_str().starts_with("nqn.2014-08.org.nvmexpress:uuid:"));
    }
}
