//! What is written is read, whatever the place in the ring; what a peer wrote that makes no ring
//! is an error.

use std::os::fd::AsFd;

use lariat_wire::rocev2::ICRC_LEN;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use proptest::prelude::*;

use super::super::ring::{self, Broken, Consumer, PacketBuffer, Piece, Producer, Pushed};
use crate::random::Random;
use crate::regions::RegionTable;

const CAPACITY: u32 = 64 << 10;

struct Both {
    producer: Producer,
    consumer: Consumer,
    memory: std::os::fd::OwnedFd,
    regions: RegionTable,
}

fn both() -> Both {
    let memory = ring::allocate(CAPACITY).unwrap();
    let (producer, _) = ring::map(memory.as_fd(), CAPACITY, true).unwrap();
    let (_, consumer) = ring::map(memory.as_fd(), CAPACITY, false).unwrap();
    Both { producer, consumer, memory, regions: RegionTable::new(Random::seeded([3; 32])) }
}

impl Both {
    fn push(&mut self, headers: &[u8], payload: &[u8], pad: usize) -> Pushed {
        let pieces = [Piece::Bytes(payload)];
        self.producer.push(headers, &pieces, pad, &self.regions).unwrap()
    }

    /// Writes to the shared memory as a peer could.
    fn scribble(&self, at: usize, bytes: &[u8]) {
        let at = i64::try_from(at).unwrap();
        assert_eq!(nix::sys::uio::pwrite(&self.memory, bytes, at), Ok(bytes.len()));
    }
}

fn whole(headers: &[u8], payload: &[u8], pad: usize) -> Vec<u8> {
    [headers, payload, &vec![0; pad + ICRC_LEN]].concat()
}

#[test]
fn a_full_ring_has_room_again() {
    let mut both = both();
    let mut buffer = PacketBuffer::new();
    let payload = [7; 4096];
    let mut fitted = 0;
    while both.push(&[1; 28], &payload, 0) == Pushed::Yes {
        fitted += 1;
    }
    assert_eq!(fitted, CAPACITY / (64 + 4096));
    // The peer sees nothing before it is shown it.
    assert_eq!(both.consumer.pop(&mut buffer), Ok(None));
    both.producer.publish();
    for left in (0..fitted).rev() {
        let got = both.consumer.pop(&mut buffer).unwrap().unwrap();
        assert_eq!(got, whole(&[1; 28], &payload, 0));
        if left != 0 {
            // Room counts when it is given back.
            assert_eq!(both.producer.peer_has_read(), 0);
        }
    }
    assert_eq!(both.push(&[1; 28], &payload, 0), Pushed::Full);
    both.consumer.release();
    assert_eq!(both.push(&[1; 28], &payload, 0), Pushed::Yes);
    assert_eq!(both.push(&[1; 28], &[0; 4100], 0), Pushed::Gone);
    assert_eq!(both.push(&[1; 100], &[], 0), Pushed::Gone);
}

#[test]
fn a_sleeper_is_woken_once() {
    let mut both = both();
    assert!(!both.producer.publish());
    assert_eq!(both.consumer.arm(), Ok(false));
    both.push(&[1; 12], &[], 0);
    assert!(both.producer.publish());
    both.push(&[1; 12], &[], 0);
    assert!(!both.producer.publish());
    // Too late to sleep.
    assert_eq!(both.consumer.arm(), Ok(true));
    both.consumer.disarm();
    assert!(!both.producer.publish());
}

#[test]
fn memory_that_could_shrink_is_not_mapped() {
    let bytes = i64::from(2 * (4096 + CAPACITY));
    let make = |seals: SealFlag, bytes: i64| {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = memfd_create(c"test", flags).unwrap();
        nix::unistd::ftruncate(&memory, bytes).unwrap();
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        memory
    };
    let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    assert!(ring::map(make(sealed, bytes), CAPACITY, false).is_ok());
    let refused = |memory: std::os::fd::OwnedFd| match ring::map(memory, CAPACITY, false) {
        Ok(_) => panic!("mapped"),
        Err(error) => error.to_string(),
    };
    assert!(refused(make(SealFlag::F_SEAL_GROW, bytes)).contains("not sealed"));
    assert!(refused(make(SealFlag::F_SEAL_SHRINK, bytes)).contains("not sealed"));
    assert!(refused(make(sealed, bytes - 4096)).contains("another size"));
    let file = tempfile();
    nix::unistd::ftruncate(&file, bytes).unwrap();
    refused(file);
    assert!(ring::map(make(sealed, bytes), CAPACITY - 64, false).is_err());
    assert!(ring::map(make(sealed, bytes), 1 << 31, false).is_err());
}

/// A file that is no memory.
fn tempfile() -> std::os::fd::OwnedFd {
    let path = std::env::temp_dir().join(format!("lariat-ring-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
    std::fs::remove_file(path).unwrap();
    file.unwrap().into()
}

#[derive(Clone, Debug)]
struct Made {
    headers: Vec<u8>,
    payload: Vec<u8>,
    pad: usize,
}

fn made() -> impl Strategy<Value = Made> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..=most);
    (bytes(48), prop_oneof![bytes(40), bytes(4096)], 0..4_usize)
        .prop_map(|(headers, payload, pad)| Made { headers, payload, pad })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(
        packets in proptest::collection::vec(made(), 1..120), every in 1..12_usize,
    ) {
        let mut both = both();
        let mut buffer = PacketBuffer::new();
        let mut waiting = std::collections::VecDeque::new();
        for (index, packet) in packets.iter().enumerate() {
            while both.push(&packet.headers, &packet.payload, packet.pad) == Pushed::Full {
                both.producer.publish();
                let wanted: Vec<u8> = waiting.pop_front().unwrap();
                prop_assert_eq!(both.consumer.pop(&mut buffer).unwrap().unwrap(), &wanted[..]);
                both.consumer.release();
            }
            waiting.push_back(whole(&packet.headers, &packet.payload, packet.pad));
            if index % every == 0 {
                both.producer.publish();
                while waiting.len() > every {
                    let wanted = waiting.pop_front().unwrap();
                    prop_assert_eq!(both.consumer.pop(&mut buffer).unwrap().unwrap(), &wanted[..]);
                }
                both.consumer.release();
            }
        }
        both.producer.publish();
        for wanted in waiting {
            prop_assert_eq!(both.consumer.pop(&mut buffer).unwrap().unwrap(), &wanted[..]);
        }
        prop_assert_eq!(both.consumer.pop(&mut buffer), Ok(None));
    }

    /// A peer that writes where it likes, between any two steps of ours.
    #[test]
    fn a_hostile_peer_gets_an_error_at_most(
        steps in proptest::collection::vec(
            (any::<bool>(), 0..4_usize, any::<u16>(), hostile(), any::<bool>()), 1..60,
        ),
    ) {
        let mut both = both();
        let mut buffer = PacketBuffer::new();
        let mut broken = false;
        for (push, place, offset, bytes, pop) in steps {
            if push {
                let pieces = [Piece::Bytes(&bytes)];
                broken |= both.producer.push(&[9; 28], &pieces, 3, &both.regions).is_err();
                both.producer.publish();
            }
            // The indices, the sleeper's flag, a record's start, anywhere in the records.
            let at = [0, 128, 256, 4096 + usize::from(offset) * 64 % CAPACITY as usize][place];
            both.scribble(at, bytes.get(..8.min(bytes.len())).unwrap());
            let mut taken = 0;
            while pop && taken < 2 * CAPACITY / 64 {
                match both.consumer.pop(&mut buffer) {
                    Ok(Some(packet)) => {
                        prop_assert!(packet.len() <= 48 + 4099 + 4);
                        taken += 1;
                    }
                    Ok(None) => break,
                    Err(Broken::Index { .. } | Broken::Record { .. }) => {
                        broken = true;
                        break;
                    }
                }
            }
            // However often it claims there is more: no more than a ring can hold at a time.
            prop_assert!(taken <= CAPACITY / 64);
            both.consumer.release();
            broken |= both.consumer.arm().is_err();
        }
        // The flag says that it came to that in some of the cases; both are fine.
        let _ = broken;
    }
}

/// Bytes as an attacker would choose them.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        Just(0_u64),
        Just(u64::MAX),
        Just(u64::from(CAPACITY)),
        (0..2 * u64::from(CAPACITY)).prop_map(|near| near & !63),
        any::<u64>(),
        (any::<u32>(), any::<u32>()).prop_map(|(a, b)| u64::from(a % 64) | u64::from(b) << 32),
        (any::<u32>(), any::<u32>())
            .prop_map(|(a, b)| u64::from(a % 64) | u64::from(b % 4200) << 32),
    ];
    number.prop_map(|number| number.to_ne_bytes().to_vec())
}

#[test]
fn lies_about_indices_and_lengths_are_told_apart() {
    let mut buffer = PacketBuffer::new();
    let tail = |value: u64| {
        let both = both();
        both.scribble(0, &value.to_ne_bytes());
        both
    };
    let capacity = u64::from(CAPACITY);
    for lie in [capacity + 64, 1, u64::MAX, u64::MAX - 63] {
        let found = tail(lie).consumer.look();
        assert_eq!(found, Err(Broken::Index { head: 0, tail: lie, capacity }));
    }
    let record = |headers: u32, payload: u32| {
        let both = tail(128);
        both.scribble(4096, &[headers.to_ne_bytes(), payload.to_ne_bytes()].concat());
        both
    };
    for (headers, payload) in [(49, 0), (u32::MAX, 0), (12, 4100), (12, u32::MAX), (12, 65)] {
        let broken = Broken::Record { headers, payload, filled: 128 };
        assert_eq!(record(headers, payload).consumer.pop(&mut buffer), Err(broken));
    }
    assert_eq!(record(12, 64).consumer.pop(&mut buffer).unwrap().unwrap().len(), 12 + 64 + 4);
    // It goes on where it was told of no room yet.
    let mut early = tail(64);
    early.scribble(4096, &[12_u32.to_ne_bytes(), 0_u32.to_ne_bytes()].concat());
    assert!(early.consumer.pop(&mut buffer).unwrap().is_some());
    early.scribble(0, &(capacity + 64).to_ne_bytes());
    let broken = Broken::Index { head: 64, tail: capacity + 64, capacity };
    assert_eq!(early.consumer.pop(&mut buffer), Err(broken));
    early.consumer.release();
    assert_eq!(early.consumer.look(), Ok(true));
    // The reader claims to have read what was never written, or to have gone back.
    let mut both = both();
    while both.push(&[1; 28], &[2; 4096], 0) == Pushed::Yes {}
    both.scribble(128, &u64::MAX.to_ne_bytes());
    let pieces = [Piece::Bytes(&[2; 4096])];
    let pushed = both.producer.push(&[1; 28], &pieces, 0, &both.regions);
    assert!(matches!(pushed, Err(Broken::Index { head: u64::MAX, .. })), "{pushed:?}");
}
