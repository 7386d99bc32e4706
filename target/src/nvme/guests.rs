//! Who has a controller, by address: hosts that a Fabrics Connect on an admin queue made known.
//! Part of the registry; `transport` asks it before a connection may share receives with others.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts of admin queues by address. One lock, taken at connects and disconnects alone.
#[derive(Clone, Debug, Default)]
pub struct Guests(Arc<Mutex<BTreeMap<IpAddr, u32>>>);

/// An admin queue's entry; it ends with this value.
#[derive(Debug)]
#[must_use = "the entry ends with this value"]
pub struct Guest {
    guests: Guests,
    address: IpAddr,
}

impl Guests {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, u32>> {
        // Every step leaves a valid map behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An admin queue of a host at this address was connected.
    pub fn enter(&self, address: IpAddr) -> Guest {
        *self.lock().entry(address).or_insert(0) += 1;
        Guest { guests: self.clone(), address }
    }

    /// Whether a host at this address has a controller.
    #[must_use]
    pub fn knows(&self, address: IpAddr) -> bool {
        self.lock().contains_key(&address)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut all = self.guests.lock();
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_as_long_as_it_has_a_queue() {
        let guests = Guests::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        assert!(!guests.knows(one));
        let first = guests.enter(one);
        let second = guests.enter(one);
        assert!(guests.knows(one) && !guests.knows(other));
        drop(first);
        assert!(guests.knows(one));
        drop(second);
        assert!(!guests.knows(one) && guests.lock().is_empty());
    }
}
