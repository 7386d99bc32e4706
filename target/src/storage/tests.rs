//! The backends against a model, the operations they issue. `sleeping` has
//! sleep and batches, `making` the files that a start makes, `refusals` why a backend
//! cannot be opened.

mod making;
mod refusals;
mod sleeping;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const NO_FDS: &[OwnedFd] = &[];

const BLOCKS: u64 = 64;
const POOL_BYTES: usize = 1 << 20;

struct Bench {
    storage: UringStorage,
    pool: Arc<Memory>,
    waker: EventWaker,
}

impl Bench {
    fn with(set: &Arc<StorageSet>, config: UringConfig, pool_bytes: usize) -> Self {
        let waker = EventWaker::new().unwrap();
        let mut storage = UringStorage::new(Arc::clone(set), waker.clone(), config).unwrap();
        let pool = Memory::allocate(pool_bytes).unwrap();
        storage.use_buffers(&[Arc::clone(&pool)]);
        Self { storage, pool, waker }
    }

    fn new(configs: &[BackendConfig]) -> Self {
        let set = StorageSet::open(configs).unwrap();
        Self::with(&set, UringConfig::default(), POOL_BYTES)
    }

    fn run(&mut self, op: BlockOp) -> Result<(), StorageError> {
        let request = BlockRequest { backend: BackendId(0), op, tag: 7 };
        self.storage.submit(request).unwrap();
        let mut done = Vec::new();
        let limit = Instant::now() + Duration::from_secs(20);
        while done.is_empty() {
            self.storage.poll(Timestamp::ZERO, &mut done);
            assert!(Instant::now() < limit, "{op:?} does not complete");
        }
        assert_eq!(self.storage.in_flight(), 0);
        assert_eq!((done.len(), done[0].tag), (1, 7));
        done[0].result
    }

    fn write(&mut self, start: u64, bytes: &[u8], fua: bool) -> Result<(), StorageError> {
        self.pool.write_at(8192, bytes).unwrap();
        self.run(BlockOp::Write { start, buffer: piece(8192, bytes.len()), fua })
    }

    fn read(&mut self, start: u64, length: usize) -> Result<Vec<u8>, StorageError> {
        self.pool.write_at(4096, &vec![0xee; length]).unwrap();
        self.run(BlockOp::Read { start, buffer: piece(4096, length) })?;
        let mut bytes = vec![0; length];
        self.pool.read_at(4096, &mut bytes).unwrap();
        Ok(bytes)
    }

    fn write_zeroes(&mut self, range: BlockRange, deallocate: bool, fua: bool) {
        self.run(BlockOp::WriteZeroes { range, deallocate, fua }).unwrap();
    }
}

fn piece(offset: u64, length: usize) -> BufferRange {
    BufferRange { memory: 0, offset, length: u32::try_from(length).unwrap() }
}

fn file(path: &Path, size_bytes: u64, block_bytes: u32) -> BackendConfig {
    let size_bytes = Some(size_bytes);
    let kind = BackendKind::File { path: path.to_owned(), size_bytes, create: true };
    BackendConfig { kind, block_bytes, read_only: false }
}

fn existing(path: &Path, block_bytes: u32, read_only: bool) -> BackendConfig {
    let kind = BackendKind::File { path: path.to_owned(), size_bytes: None, create: false };
    BackendConfig { kind, block_bytes, read_only }
}

fn memory(size_bytes: u64, block_bytes: u32) -> BackendConfig {
    BackendConfig { kind: BackendKind::Memory { size_bytes }, block_bytes, read_only: false }
}

fn refusal(configs: &[BackendConfig]) -> String {
    StorageSet::open(configs).unwrap_err().1.to_string()
}

#[derive(Clone, Debug)]
enum Action {
    Write { start: u64, blocks: u64, fill: u8, fua: bool },
    Read { start: u64, blocks: u64 },
    Zero { start: u64, blocks: u64, deallocate: bool, fua: bool },
    Deallocate { start: u64, blocks: u64 },
    Flush,
}

fn action() -> impl Strategy<Value = Action> {
    let range =
        (0..BLOCKS).prop_flat_map(|start| (Just(start), 1..=(BLOCKS - start).min(BLOCKS / 2)));
    prop_oneof![
        4 => (range.clone(), any::<u8>(), any::<bool>())
            .prop_map(|((start, blocks), fill, fua)| Action::Write { start, blocks, fill, fua }),
        3 => range.clone().prop_map(|(start, blocks)| Action::Read { start, blocks }),
        1 => (range.clone(), any::<bool>(), any::<bool>()).prop_map(
            |((start, blocks), deallocate, fua)| Action::Zero { start, blocks, deallocate, fua }
        ),
        1 => range.prop_map(|(start, blocks)| Action::Deallocate { start, blocks }),
        1 => Just(Action::Flush),
    ]
}

/// Runs actions on a backend and on plain bytes.
fn against_model(mut bench: Bench, block_bytes: usize, actions: &[Action]) {
    let place = |blocks: u64| usize::try_from(blocks).unwrap() * block_bytes;
    let mut model = vec![0_u8; place(BLOCKS)];
    for action in actions {
        match *action {
            Action::Write { start, blocks, fill, fua } => {
                let bytes: Vec<u8> = (0..place(blocks))
                    .map(|n| fill.wrapping_add((n / 7).to_le_bytes()[0]))
                    .collect();
                bench.write(start, &bytes, fua).unwrap();
                model[place(start)..place(start + blocks)].copy_from_slice(&bytes);
            }
            Action::Read { start, blocks } => {
                let bytes = bench.read(start, place(blocks)).unwrap();
                assert!(bytes == model[place(start)..place(start + blocks)], "{action:?}");
            }
            Action::Zero { start, blocks, deallocate, fua } => {
                bench.write_zeroes(BlockRange { start, blocks }, deallocate, fua);
                model[place(start)..place(start + blocks)].fill(0);
            }
            Action::Deallocate { start, blocks } => {
                bench.run(BlockOp::Deallocate { range: BlockRange { start, blocks } }).unwrap();
                if bench.storage.geometry(BackendId(0)).unwrap().deallocate {
                    model[place(start)..place(start + blocks)].fill(0);
                }
            }
            Action::Flush => bench.run(BlockOp::Flush).unwrap(),
        }
    }
    assert!(bench.read(0, place(BLOCKS)).unwrap() == model, "at the end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_file_keeps_what_it_is_told(
        actions in prop::collection::vec(action(), 1..30),
        large in any::<bool>(),
        fixed_buffers in any::<bool>(),
    ) {
        let block_bytes = if large { 4096 } else { 512 };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let config = file(&path, BLOCKS * u64::from(block_bytes), block_bytes);
        let set = StorageSet::open(&[config]).unwrap();
        let config = UringConfig { fixed_buffers, ..UringConfig::default() };
        against_model(Bench::with(&set, config, POOL_BYTES), block_bytes as usize, &actions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn memory_keeps_what_it_is_told(
        actions in prop::collection::vec(action(), 1..30),
        large in any::<bool>(),
    ) {
        let block_bytes = if large { 4096 } else { 512 };
        let bench = Bench::new(&[memory(BLOCKS * u64::from(block_bytes), block_bytes)]);
        against_model(bench, block_bytes as usize, &actions);
    }
}

#[test]
fn null_forgets() {
    let kind = BackendKind::Null { size_bytes: 1 << 40 };
    let mut bench = Bench::new(&[BackendConfig { kind, block_bytes: 4096, read_only: false }]);
    bench.write(5, &[1; 4096], true).unwrap();
    assert_eq!(bench.read(5, 4096).unwrap(), [0; 4096]);
    bench.run(BlockOp::Flush).unwrap();
}

#[test]
fn only_null_is_known_to_be_zeroes() {
    let null = |size_bytes| {
        let kind = BackendKind::Null { size_bytes };
        BackendConfig { kind, block_bytes: 4096, read_only: false }
    };
    let bench = Bench::new(&[memory(1 << 20, 4096), null(1 << 20)]);
    assert!(bench.storage.knows_zeroes());
    let known = |backend, start, blocks| {
        bench.storage.reads_zeroes(BackendId(backend), BlockRange { start, blocks })
    };
    assert!(known(1, 0, 256) && known(1, 255, 1));
    assert!(!known(1, 255, 2) && !known(1, u64::MAX, 2), "not there");
    assert!(!known(0, 0, 1) && !known(2, 0, 1));
    assert!(!Bench::new(&[memory(1 << 20, 4096)]).storage.knows_zeroes());
}

#[test]
fn durability_is_asked_of_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&[file(&folder.path().join("disk"), 1 << 20, 4096)]);
    let range = BlockRange { start: 0, blocks: 4 };
    let mut expected = RingCounters::default();
    let fixed = bench.storage.ring_is_fixed();

    bench.write(0, &[1; 4096], false).unwrap();
    expected.writes += 1;
    expected.fixed += u64::from(fixed);
    assert_eq!(bench.storage.counters(), expected);

    bench.write(0, &[2; 8192], true).unwrap();
    expected.durable_writes += 1;
    expected.fixed += u64::from(fixed);
    assert_eq!(bench.storage.counters(), expected);

    bench.run(BlockOp::Flush).unwrap();
    expected.syncs += 1;
    assert_eq!(bench.storage.counters(), expected);

    bench.write_zeroes(range, true, false);
    let deallocate = bench.storage.geometry(BackendId(0)).unwrap().deallocate;
    if !deallocate {
        eprintln!("SKIPPED: no holes on this file system");
        return;
    }
    expected.holes += 1;
    assert_eq!(bench.storage.counters(), expected);

    // Zeroes that must be durable are synced, however they were made.
    bench.write_zeroes(range, true, true);
    expected.holes += 1;
    expected.syncs += 1;
    assert_eq!(bench.storage.counters(), expected);
    bench.write_zeroes(range, false, true);
    let counters = bench.storage.counters();
    assert_eq!(counters.syncs, expected.syncs + 1);
    assert!(counters.zero_ranges == 1, "{counters:?}");
}

#[test]
fn after_a_failed_sync_nothing_is_called_durable() {
    let folder = tempfile::tempdir().unwrap();
    let set = StorageSet::open(&[file(&folder.path().join("disk"), 64 << 10, 512)]).unwrap();
    let mut bench = Bench::with(&set, UringConfig::default(), POOL_BYTES);
    let mut other = Bench::with(&set, UringConfig::default(), POOL_BYTES);
    let request = |op| BlockRequest { backend: BackendId(0), op, tag: 7 };
    let buffer = piece(4096, 512);
    let mut done = Vec::new();
    // A write that was not taken loses nothing that was.
    let forced = BlockOp::Write { start: 0, buffer, fua: true };
    bench.storage.pretend(request(forced), step::Step::Transfer, -libc::ENOSPC);
    bench.storage.poll(Timestamp::ZERO, &mut done);
    assert_eq!(done.pop().map(|done| done.result), Some(Err(StorageError::NoSpace)));
    assert_eq!(bench.run(BlockOp::Flush), Ok(()));
    assert_eq!(bench.write(0, &[1; 512], true), Ok(()));

    bench.storage.pretend(request(BlockOp::Flush), step::Step::Sync, -libc::EIO);
    bench.storage.poll(Timestamp::ZERO, &mut done);
    let lost = Err(StorageError::Write { errno: libc::EIO });
    assert_eq!(done.pop().map(|done| done.result), Some(lost));
    // The kernel would say yes, here and to every other reactor.
    for bench in [&mut bench, &mut other] {
        assert_eq!(bench.run(BlockOp::Flush), lost);
        assert_eq!(bench.write(0, &[2; 512], true), lost);
        assert_eq!(bench.write(0, &[3; 512], false), Ok(()));
        assert_eq!(bench.read(0, 512), Ok(vec![3; 512]));
    }
}

#[test]
fn holes_give_space_back_and_zeroes_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut bench = Bench::new(&[file(&path, 1 << 20, 4096)]);
    let used = || std::fs::metadata(&path).unwrap().blocks();
    let all = BlockRange { start: 0, blocks: 128 };
    assert_eq!(used(), 0);
    bench.write(0, &vec![1; 512 << 10], true).unwrap();
    let full = used();
    assert!(full >= 1024);
    bench.write_zeroes(all, false, true);
    if bench.storage.counters().zero_ranges > 0 && bench.storage.counters().holes == 0 {
        assert!(used() >= full, "{} of {full} blocks", used());
    }
    if !bench.storage.geometry(BackendId(0)).unwrap().deallocate {
        eprintln!("SKIPPED: no holes on this file system");
        return;
    }
    bench.run(BlockOp::Deallocate { range: all }).unwrap();
    bench.run(BlockOp::Flush).unwrap();
    assert!(used() < full / 2, "{} of {full} blocks", used());
    assert_eq!(bench.read(0, 4096).unwrap(), [0; 4096]);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}

#[test]
fn zeroes_are_written_by_hand_where_the_kernel_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&[file(&folder.path().join("disk"), 4 << 20, 512)]);
    bench.storage.pretend_no_fallocate();
    bench.write(0, &vec![9; 512 << 10], false).unwrap();
    let range = BlockRange { start: 1, blocks: 1022 };
    bench.write_zeroes(range, true, true);
    let counters = bench.storage.counters();
    assert_eq!((counters.zero_writes, counters.holes, counters.zero_ranges), (2, 0, 0));
    let bytes = bench.read(0, 512 << 10).unwrap();
    assert!(bytes[..512].iter().all(|byte| *byte == 9));
    assert!(bytes[512..1023 * 512].iter().all(|byte| *byte == 0));
    assert!(bytes[1023 * 512..].iter().all(|byte| *byte == 9));
    // A hint may be ignored.
    bench.run(BlockOp::Deallocate { range: BlockRange { start: 0, blocks: 1 } }).unwrap();
    assert_eq!(bench.read(0, 512).unwrap(), [9; 512]);
}

#[test]
fn many_requests_complete_once_each_and_the_rest_is_handed_back() {
    let folder = tempfile::tempdir().unwrap();
    let config = file(&folder.path().join("disk"), 1 << 20, 4096);
    let set = StorageSet::open(&[config]).unwrap();
    let config = UringConfig { depth: 16, ..UringConfig::default() };
    let mut bench = Bench::with(&set, config, POOL_BYTES);
    let request = |tag: u64| BlockRequest {
        backend: BackendId(0),
        op: BlockOp::Write { start: tag, buffer: piece(tag * 4096, 4096), fua: false },
        tag,
    };
    for tag in 0..16 {
        bench.pool.write_at(tag * 4096, &[tag.to_le_bytes()[0]; 4096]).unwrap();
        bench.storage.submit(request(tag)).unwrap();
    }
    assert_eq!(bench.storage.submit(request(16)), Err(request(16)));
    assert_eq!(bench.storage.in_flight(), 16);
    let mut done = Vec::new();
    while bench.storage.in_flight() > 0 {
        bench.storage.sleep(NO_FDS, Some(Duration::from_secs(10))).unwrap();
        bench.storage.poll(Timestamp::ZERO, &mut done);
    }
    let mut tags: Vec<_> = done.iter().map(|done| done.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..16).collect::<Vec<_>>());
    assert!(done.iter().all(|done| done.result.is_ok()));
    bench.storage.submit(request(16)).unwrap();
    // Dropped with a request in flight: the ring waits for it.
    drop(bench);
}

#[test]
fn buffers_too_large_to_register_work_unregistered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let set = StorageSet::open(&[file(&path, 1 << 20, 4096)]).unwrap();
    let mut bench = Bench::with(&set, UringConfig::default(), (1 << 30) + 4096);
    bench.write(3, &[5; 4096], true).unwrap();
    assert_eq!(bench.read(3, 4096).unwrap(), [5; 4096]);
    assert_eq!(bench.storage.counters().fixed, 0);
    let mut byte = [0];
    File::open(&path).unwrap().read_exact_at(&mut byte, 3 * 4096).unwrap();
    assert_eq!(byte, [5]);
}

#[test]
fn nonsense_is_refused_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let invalid = Err(StorageError::Other { errno: libc::EINVAL });
    let fault = Err(StorageError::Other { errno: libc::EFAULT });
    for config in [file(&path, 1 << 20, 4096), memory(1 << 20, 4096)] {
        let mut bench = Bench::new(&[config]);
        for op in [
            BlockOp::Read { start: 256, buffer: piece(0, 4096) },
            BlockOp::Write { start: u64::MAX, buffer: piece(0, 4096), fua: false },
            BlockOp::Write { start: 0, buffer: piece(0, 512), fua: false },
            BlockOp::Deallocate { range: BlockRange { start: 1, blocks: 256 } },
        ] {
            assert_eq!(bench.run(op), invalid, "{op:?}");
        }
        let outside = piece(POOL_BYTES as u64, 4096);
        assert_eq!(bench.run(BlockOp::Read { start: 0, buffer: outside }), fault);
        let nowhere = BufferRange { memory: 1, offset: 0, length: 4096 };
        assert_eq!(bench.run(BlockOp::Read { start: 0, buffer: nowhere }), fault);
        bench.run(BlockOp::Read { start: 0, buffer: piece(0, 0) }).unwrap();
    }
}

#[test]
fn a_file_cut_short_is_a_read_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut bench = Bench::new(&[file(&path, 1 << 20, 4096)]);
    File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
    assert_eq!(bench.read(1, 8192), Err(StorageError::Read { errno: libc::EIO }));
    assert!(bench.read(1, 4096).is_ok());
}

#[test]
fn read_only_backends_refuse_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![3; 8192]).unwrap();
    let mut bench = Bench::new(&[existing(&path, 4096, true)]);
    assert!(bench.storage.geometry(BackendId(0)).unwrap().read_only);
    assert_eq!(bench.write(0, &[0; 4096], false), Err(StorageError::ReadOnly));
    assert_eq!(bench.read(1, 4096).unwrap(), [3; 4096]);
    bench.run(BlockOp::Flush).unwrap();
    // Readers share, a writer does not.
    let second = StorageSet::open(&[existing(&path, 512, true)]).unwrap();
    assert!(refusal(&[existing(&path, 4096, false)]).contains("is in use by"));
    drop((bench, second));
    StorageSet::open(&[existing(&path, 4096, false)]).unwrap();
}

#[test]
fn the_lock_of_a_dead_process_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, [0; 8192]).unwrap();
    // flock(1) takes the lock and ends; the file it locked stays open a little longer, as it does
    // while the kernel has writes of a killed target under way.
    let script = "exec 9<>\"$0\"; flock -n 9 || exit 1; sleep 0.4 <&9 >/dev/null 2>&1 & exit 0";
    let status = std::process::Command::new("sh").args(["-c", script]).arg(&path).status();
    if !status.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no flock(1) here");
        return;
    }
    let start = Instant::now();
    StorageSet::open(&[existing(&path, 4096, false)]).unwrap();
    assert!(start.elapsed() > Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn a_full_file_system_is_no_space() {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: a_full_file_system_is_no_space mounts a tmpfs, which needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    // The mount is seen by this thread alone, and goes with it.
    let result = thread::spawn(move || {
        let none: Option<&str> = None;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(none, "/", none, private, none))
            .and_then(|()| {
                mount(Some("t"), &place, Some("tmpfs"), MsFlags::empty(), Some("size=1m"))
            })
        {
            eprintln!("SKIPPED: a_full_file_system_is_no_space cannot mount a tmpfs: {error}");
            return;
        }
        let mut bench = Bench::new(&[file(&place.join("disk"), 4 << 20, 4096)]);
        let bytes = vec![1; 256 << 10];
        let results: Vec<_> = (0..8_u64).map(|n| bench.write(n * 64, &bytes, false)).collect();
        assert_eq!(results[0], Ok(()));
        assert_eq!(results[7], Err(StorageError::NoSpace), "{results:?}");
        // Reading and giving space back work, and then there is room again.
        assert_eq!(bench.read(0, 4096).unwrap(), [1; 4096]);
        let range = BlockRange { start: 0, blocks: 128 };
        bench.run(BlockOp::Deallocate { range }).unwrap();
        bench.write(7 * 64, &bytes, false).unwrap();
    })
    .join();
    result.unwrap();
}
