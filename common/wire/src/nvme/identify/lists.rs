//! Lists of identifiers: active namespaces (CNS 02h, 07h, 10h) and controllers
//! (CNS 12h, 13h) (NVMe Base 2.1, 5.1.13.2.2 and 4.6). Called as `controller`.

use crate::endian::{U16Le, U32Le};
use crate::layout::layout;
use crate::nvme::ids::{ControllerId, Nsid};

layout! {
    /// Up to 1,024 namespaces in ascending order; zeros end the list.
    NamespaceList[4096] {
        /// The identifiers.
        0 pub entries: [U32Le; 1024],
    }
}

impl NamespaceList {
    /// Most namespaces of one list; a full list is continued after its last.
    pub const CAPACITY: usize = 1024;

    /// The namespaces of `ascending` that are greater than `after`, as many as
    /// fit. The caller gives them in ascending order.
    #[must_use]
    pub fn after(after: Nsid, ascending: impl IntoIterator<Item = Nsid>) -> Self {
        let mut list = Self::default();
        let following = ascending.into_iter().filter(|&nsid| nsid > after);
        for (entry, nsid) in list.entries.iter_mut().zip(following) {
            entry.set(nsid.0);
        }
        list
    }

    /// The namespaces, up to the first zero.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.entries.iter().map(|entry| Nsid(entry.get())).take_while(|&nsid| nsid != Nsid::NONE)
    }

    /// Where to ask on, if the list is full.
    #[must_use]
    pub fn continue_after(&self) -> Option<Nsid> {
        self.entries.last().map(|entry| Nsid(entry.get())).filter(|&nsid| nsid != Nsid::NONE)
    }
}

layout! {
    /// Up to 2,047 controllers in ascending order.
    ControllerList[4096] {
        /// Number of identifiers.
        0 pub count: U16Le,
        /// The identifiers.
        2 pub entries: [U16Le; 2047],
    }
}

impl ControllerList {
    /// The controllers of `ascending` from `first` on, as many as fit. The
    /// caller gives them in ascending order.
    #[must_use]
    pub fn starting_at(
        first: ControllerId,
        ascending: impl IntoIterator<Item = ControllerId>,
    ) -> Self {
        let mut list = Self::default();
        let mut count = 0;
        let following = ascending.into_iter().filter(|&id| id >= first);
        for (entry, id) in list.entries.iter_mut().zip(following) {
            entry.set(id.0);
            count += 1;
        }
        list.count.set(count);
        list
    }

    /// The controllers; a count beyond the list's end is cut.
    pub fn iter(&self) -> impl Iterator<Item = ControllerId> + '_ {
        self.entries
            .iter()
            .take(usize::from(self.count.get()))
            .map(|entry| ControllerId(entry.get()))
    }
}
