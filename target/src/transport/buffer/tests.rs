//! The pool: pieces, shares, turns.

use proptest::prelude::*;

use super::*;

/// The connections of the tests: an admin queue and an I/O queue of one host; others are added.
const ADMIN: u32 = 0;
const IO: u32 = 1;
const KIB: u32 = 1 << 10;

fn host(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn pool(data_kib: u32, reserve_kib: u32, max_kib: u32) -> BufferPool {
    let mut pool = BufferPool::new(&PoolConfig {
        data_bytes: data_kib << 10,
        reserve_bytes: reserve_kib << 10,
        max_buffer_bytes: max_kib << 10,
    })
    .unwrap();
    pool.join(ADMIN, host(0), Class::Admin, 32);
    pool.join(IO, host(0), Class::Data, 32);
    pool
}

fn waiter(class: Class, slot: u32, bytes: u32) -> Waiter {
    Waiter { slot, bytes, class, since: Timestamp::ZERO }
}

/// Takes as many pieces as there are to have.
fn take_all(pool: &mut BufferPool, connection: u32, bytes: u32) -> Vec<Buffer> {
    std::iter::from_fn(|| pool.take(connection, Class::Data, bytes)).collect()
}

/// Makes a connection wait for so many pieces; the slots say whose they are.
fn queue(pool: &mut BufferPool, connection: u32, count: u32, bytes: u32) {
    for number in 0..count {
        pool.wait(connection, waiter(Class::Data, connection * 100 + number, bytes));
    }
}

/// Grants all that can be granted.
fn granted(pool: &mut BufferPool) -> (Vec<u32>, Vec<Buffer>) {
    std::iter::from_fn(|| pool.grant()).map(|(waiter, buffer)| (waiter.slot, buffer)).unzip()
}

#[test]
fn data_cannot_take_the_reserve() {
    let mut pool = pool(16, 8, 16);
    let all: Vec<_> = std::iter::from_fn(|| pool.take(IO, Class::Data, 4096)).collect();
    assert_eq!(all.len(), 4);
    let admin = pool.take(ADMIN, Class::Admin, 1024).unwrap();
    assert_eq!(admin.capacity(), 4096);
    assert!(admin.offset() >= 16 << 10);
    pool.release(admin);
    for buffer in all {
        pool.release(buffer);
    }
    assert_eq!(pool.free_bytes(), pool.total_bytes());
}

#[test]
fn admin_takes_data_space_when_the_reserve_is_short() {
    let mut pool = pool(64, 64, 64);
    let reserve = pool.take(ADMIN, Class::Admin, 65_536).unwrap();
    let large = pool.take(ADMIN, Class::Admin, 65_536).unwrap();
    assert_eq!((large.offset(), large.capacity()), (0, 65_536));
    pool.release(large);
    pool.release(reserve);
}

#[test]
fn the_largest_admin_command_never_needs_data_space() {
    let mut pool = pool(64, 4, 64);
    let data = take_all(&mut pool, IO, 4096);
    assert_eq!(data.len(), 16);
    let large = pool.take(ADMIN, Class::Admin, 65_536).unwrap();
    pool.wait(ADMIN, waiter(Class::Admin, 1, 65_536));
    pool.wait(ADMIN, waiter(Class::Admin, 2, 1024));
    pool.release(large);
    let (waiter, large) = pool.grant().unwrap();
    assert_eq!(waiter.slot, 1);
    pool.release(large);
    assert_eq!(pool.grant().map(|(waiter, _)| waiter.slot), Some(2));
    drop(data);
}

#[test]
fn waiting_is_in_order_even_for_small_requests() {
    let mut pool = pool(16, 4, 16);
    let first = pool.take(IO, Class::Data, 16_384).unwrap();
    pool.wait(IO, waiter(Class::Data, 1, 16_384));
    pool.wait(IO, waiter(Class::Data, 2, 4096));
    assert!(pool.grant().is_none());
    pool.release(first);
    // Room is there, but not for those who come later.
    assert!(pool.take(IO, Class::Data, 4096).is_none());
    let (waiter, buffer) = pool.grant().unwrap();
    assert_eq!(waiter.slot, 1);
    assert!(pool.grant().is_none());
    pool.release(buffer);
    let (waiter, buffer) = pool.grant().unwrap();
    assert_eq!(waiter.slot, 2);
    pool.release(buffer);
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn a_waiting_admin_command_goes_first_and_can_be_cancelled() {
    let mut pool = pool(4, 4, 4);
    let data = pool.take(IO, Class::Data, 1).unwrap();
    let admin = pool.take(ADMIN, Class::Admin, 1).unwrap();
    for slot in 0..2 {
        pool.wait(IO, waiter(Class::Data, slot, 1));
        pool.wait(ADMIN, waiter(Class::Admin, 10 + slot, 1));
    }
    pool.join(2, host(0), Class::Admin, 4);
    pool.wait(2, waiter(Class::Admin, 20, 1));
    pool.forget(ADMIN);
    pool.release(data);
    let (waiter, data) = pool.grant().unwrap();
    assert_eq!(waiter.slot, 20);
    pool.release(admin);
    // The reserve is free again, but a data request does not get it.
    assert!(pool.grant().is_none());
    pool.release(data);
    assert_eq!(pool.grant().map(|(waiter, _)| waiter.slot), Some(0));
}

#[test]
fn too_large_is_never_granted() {
    let mut pool = pool(64, 0, 16);
    assert_eq!(pool.max_buffer_bytes(), 16 << 10);
    assert!(pool.take(IO, Class::Data, (16 << 10) + 1).is_none());
}

#[test]
fn who_is_alone_may_take_all() {
    // Twice what a queue 128 deep with 128 KiB each needs.
    let mut pool = pool(32 << 10, 64, 128);
    let held = take_all(&mut pool, IO, 128 * KIB);
    assert_eq!(held.len(), 256);
    for buffer in held {
        pool.release(buffer);
    }
    // Several queues of the host: one of them still has a depth of 128.
    pool.join(2, host(0), Class::Data, 32);
    assert_eq!(take_all(&mut pool, IO, 128 * KIB).len(), 128);
    assert_eq!(take_all(&mut pool, 2, 128 * KIB).len(), 64);
}

#[test]
fn every_newcomer_finds_something() {
    let mut pool = pool(1024, 64, 4);
    let mut held = Vec::new();
    for key in 2..8 {
        pool.join(key, host(u8::try_from(key).unwrap()), Class::Data, 32);
    }
    // Each takes all it can and gives nothing back.
    let counts: Vec<_> = (2..8)
        .map(|key| {
            let taken = take_all(&mut pool, key, 4 * KIB);
            let count = taken.len();
            held.extend(taken);
            count
        })
        .collect();
    assert_eq!(counts, [128, 64, 32, 16, 8, 4]);
    // Whoever holds nothing gets one even if it is the last one.
    for key in 8..12 {
        pool.join(key, host(u8::try_from(key).unwrap()), Class::Data, 32);
        assert!(pool.take(key, Class::Data, 4 * KIB).is_some());
    }
}

#[test]
fn a_host_with_many_queues_has_no_more_than_one_with_one() {
    let mut pool = pool(480, 64, 4);
    for key in 2..10 {
        pool.join(key, host(1), Class::Data, 64);
    }
    for key in 1..10 {
        queue(&mut pool, key, 60, 4 * KIB);
    }
    let (slots, _held) = granted(&mut pool);
    let single = slots.iter().filter(|&slot| slot / 100 == IO).count();
    let many = slots.len() - single;
    // A third each; of its third the second host keeps a part free for yet another queue.
    assert_eq!((single, many), (42, 36));
    // In the host, its queues had turns.
    for key in 2..10 {
        let count = slots.iter().filter(|&slot| slot / 100 == key).count();
        assert!(count == 4 || count == 5, "{count}");
    }
}

#[test]
fn turns_go_round_hosts_and_requests_stay_in_order() {
    let mut pool = pool(64, 64, 16);
    pool.join(2, host(1), Class::Data, 8);
    pool.join(3, host(1), Class::Data, 8);
    pool.join(4, host(2), Class::Data, 8);
    let first = take_all(&mut pool, IO, 4 * KIB);
    for key in [2, 3, 4] {
        queue(&mut pool, key, 2, 4 * KIB);
    }
    // It is over its share already: not one goes to it, although it asked first.
    assert!(pool.take(IO, Class::Data, 4 * KIB).is_none());
    let (slots, held) = granted(&mut pool);
    assert_eq!(slots, [200, 400, 300, 401]);
    assert_eq!(first.len(), 8);
    for buffer in held.into_iter().chain(first) {
        pool.release(buffer);
    }
    assert_eq!(granted(&mut pool).0, [201, 301]);
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let mut pool = pool(16, 64, 16);
    pool.join(2, host(1), Class::Data, 8);
    let small = pool.take(IO, Class::Data, 4 * KIB).unwrap();
    pool.wait(2, waiter(Class::Data, 200, 16 * KIB));
    pool.wait(IO, waiter(Class::Data, 100, 4 * KIB));
    // Room for the small one is there, but it is the other's turn.
    assert!(pool.grant().is_none());
    pool.release(small);
    assert_eq!(pool.grant().map(|(waiter, _)| waiter.slot), Some(200));
}

#[test]
fn who_is_barred_gets_nothing_and_holds_nobody_up() {
    let mut pool = pool(16, 64, 4);
    pool.join(2, host(1), Class::Data, 8);
    let held = take_all(&mut pool, IO, 4 * KIB);
    queue(&mut pool, IO, 2, 4 * KIB);
    queue(&mut pool, 2, 1, 4 * KIB);
    pool.bar(IO, true);
    for buffer in held {
        pool.release(buffer);
    }
    assert_eq!(granted(&mut pool).0, [200]);
    assert!(!pool.may_grant());
    assert_eq!(pool.waiting_since(), Timestamp::NEVER);
    pool.bar(IO, false);
    assert!(pool.may_grant());
    assert_eq!(pool.waiting_since(), Timestamp::ZERO);
    assert_eq!(granted(&mut pool).0.len(), 1);
}

#[test]
fn accounts_close() {
    let mut pool = pool(16, 16, 16);
    pool.join(2, host(1), Class::Data, 8);
    let buffer = pool.take(2, Class::Data, 16 * KIB).unwrap();
    queue(&mut pool, 2, 3, 4 * KIB);
    queue(&mut pool, IO, 3, 4 * KIB);
    pool.forget(2);
    assert_eq!(pool.waiting(), 3);
    assert!(pool.holds(2));
    pool.release(buffer);
    for key in [2, IO, ADMIN] {
        assert!(!pool.holds(key));
        pool.leave(key);
    }
    assert!(pool.shares.is_empty());
}

proptest! {
    /// Whatever happens: if everything that was granted comes back again and again, everybody is
    /// served, in the order of asking in each connection.
    #[test]
    fn nobody_starves(
        asks in prop::collection::vec((1u32..7, 1u32..=65_536), 1..120),
        returns in prop::collection::vec(any::<prop::sample::Index>(), 120),
        bars in prop::collection::vec(any::<bool>(), 120),
    ) {
        let mut pool = pool(128, 8, 64);
        for key in 2..7u32 {
            pool.join(key, host(u8::try_from(key / 2).unwrap()), Class::Data, 8);
        }
        let mut held: Vec<Buffer> = Vec::new();
        let mut served: Vec<u32> = Vec::new();
        let total = asks.len();
        for (number, ((&(key, bytes), index), bar)) in (0..).zip(asks.iter().zip(returns).zip(bars))
        {
            pool.bar(key, bar);
            let slot = key * 1000 + number;
            match pool.take(key, Class::Data, bytes) {
                Some(buffer) => {
                    served.push(slot);
                    held.push(buffer);
                }
                None => pool.wait(key, waiter(Class::Data, slot, bytes)),
            }
            if !held.is_empty() && index.index(2) == 0 {
                pool.release(held.swap_remove(index.index(held.len())));
            }
            while let Some((waiter, buffer)) = pool.grant() {
                served.push(waiter.slot);
                held.push(buffer);
            }
        }
        for key in 1..7 {
            pool.bar(key, false);
        }
        for _ in 0..2 * total {
            while let Some((waiter, buffer)) = pool.grant() {
                served.push(waiter.slot);
                held.push(buffer);
            }
            if !held.is_empty() {
                pool.release(held.swap_remove(0));
            }
        }
        prop_assert_eq!(served.len(), total);
        for key in 1..7 {
            let own: Vec<_> = served.iter().filter(|&slot| slot / 1000 == key).collect();
            prop_assert!(own.is_sorted());
        }
        prop_assert_eq!(pool.free_bytes(), pool.total_bytes());
        for key in 0..7 {
            pool.leave(key);
        }
        prop_assert!(pool.shares.is_empty());
    }

    #[test]
    fn pieces_never_overlap_and_all_comes_back(
        data_kib in 64u32..300,
        steps in prop::collection::vec((any::<bool>(), 1u32..=65_536, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut pool = pool(data_kib, 8, 64);
        let mut held: Vec<Buffer> = Vec::new();
        for (take, bytes, index) in steps {
            if take {
                if let Some(buffer) = pool.take(IO, Class::Data, bytes) {
                    prop_assert!(buffer.capacity() >= bytes);
                    prop_assert_eq!(buffer.offset() % u64::from(UNIT_BYTES), 0);
                    let end = buffer.offset() + u64::from(buffer.capacity());
                    prop_assert!(end <= u64::from(data_kib.div_ceil(4)) * 4096);
                    for other in &held {
                        let other_end = other.offset() + u64::from(other.capacity());
                        prop_assert!(end <= other.offset() || other_end <= buffer.offset());
                    }
                    held.push(buffer);
                }
            } else if !held.is_empty() {
                pool.release(held.swap_remove(index.index(held.len())));
            }
        }
        for buffer in held {
            pool.release(buffer);
        }
        prop_assert_eq!(pool.free_bytes(), pool.total_bytes());
        // Everything merges again: the largest piece can be had.
        prop_assert!(pool.take(IO, Class::Data, 65_536).is_some());
    }
}
