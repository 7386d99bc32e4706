//! The blocking API over the soft fabric on loopback, against the stub target in a thread.

#![allow(clippy::unwrap_used, reason = "a panic here is a failing test")]

mod stub;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lariat::{
    Buffer, BufferPool, ConnectOptions, Controller, Error, IoError, LossReason, Memory, Nqn, Nsid,
    RawData, Status,
};
use lariat_fabric::soft::{self, HostNetwork, SoftConfig, SoftFabric};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::identify::SglSupport;
use lariat_wire::nvme::{Command, IoOpcode};
use stub::{Knobs, SUBSYSTEM, Stub};

type Soft = SoftFabric<HostNetwork>;
type Edit = Box<dyn FnOnce(&mut Stub<Soft>, Timestamp) + Send>;

/// The stub target, running.
struct Running {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    edits: Sender<Edit>,
    thread: Option<JoinHandle<()>>,
}

/// Each test its own loopback address, so that tests run side by side, as threads of a process or
/// as processes of their own.
fn own_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(32);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [low, high, ..] = std::process::id().to_le_bytes();
    // The last byte must be neither 0 nor 255.
    let ip = [127, number * 2 + (low & 1), high, (low >> 1) + 64];
    SocketAddr::from((ip, 4420))
}

impl Running {
    fn new(knobs: Knobs) -> Self {
        let address = own_address();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (edits, inbox): (Sender<Edit>, Receiver<Edit>) = channel();
        let (up, is_up) = channel();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let now = || Timestamp::ZERO + start.elapsed();
            let fabric = soft::open_group(1, &SoftConfig::default()).unwrap().remove(0);
            let mut stub = Stub::new(fabric, address, knobs);
            up.send(()).unwrap();
            let mut idle = 0;
            while !stopped.load(Ordering::Relaxed) {
                while let Ok(edit) = inbox.try_recv() {
                    edit(&mut stub, now());
                }
                idle = if stub.poll(now()) { 0 } else { idle + 1 };
                if idle > 50 {
                    stub.fabric.arm(now());
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        is_up.recv().unwrap();
        Self { address, stop, edits, thread: Some(thread) }
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions { queue_depth: 32, ..ConnectOptions::new(self.address, name()) }
    }

    /// Looks at or changes the stub.
    fn with<R: Send + 'static>(
        &self,
        edit: impl FnOnce(&mut Stub<Soft>, Timestamp) -> R + Send + 'static,
    ) -> R {
        let (reply, answer) = channel();
        let edit: Edit = Box::new(move |stub, now| reply.send(edit(stub, now)).unwrap());
        self.edits.send(edit).unwrap();
        answer.recv().unwrap()
    }

    /// As if the machine had lost its power: nothing is sent any more, no good-bye either.
    fn freeze(&mut self) {
        self.edits.send(Box::new(|_, _| std::thread::sleep(Duration::from_secs(6)))).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking());
        }
    }
}

fn name() -> Nqn {
    Nqn::parse(SUBSYSTEM).unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 253).unwrap()).collect()
}

#[test]
fn a_disk_read_and_written_synchronously() {
    let target = Running::new(Knobs::default());
    let controller = Controller::connect(target.options()).unwrap();
    assert_eq!(controller.identify().unwrap().model(), "Stub");
    assert_eq!(controller.id().0, 5);
    let disk = controller.only_namespace().unwrap();
    assert_eq!((disk.size_bytes(), disk.block_bytes()), (8192 * 512, 512));
    // More than all buffers of the synchronous calls together, at an odd block.
    let bytes = pattern(3 << 20);
    disk.write_at(&bytes, 3 * 512).unwrap();
    let mut back = vec![0; bytes.len()];
    disk.read_at(&mut back, 3 * 512).unwrap();
    assert_eq!(back, bytes);
    assert_eq!(target.with(|stub, _| stub.disk[3 * 512..][..3 << 20].to_vec()), bytes);
    disk.write_zeroes(3 * 512, 512, true).unwrap();
    disk.deallocate(4 * 512, 512).unwrap();
    disk.flush().unwrap();
    disk.read_at(&mut back[..1536], 3 * 512).unwrap();
    assert_eq!(back[..1024], [0; 1024]);
    assert_eq!(back[1024..1536], bytes[1024..1536]);
    disk.write_at_durably(&[], 0).unwrap();
    let error = disk.read_at(&mut [0; 100], 0).unwrap_err();
    assert!(matches!(error, IoError::Unaligned { block_bytes: 512, .. }), "{error}");
    let error = disk.read_at(&mut [0; 1024], 8191 * 512).unwrap_err();
    assert!(matches!(error, IoError::OutOfRange { .. }), "{error}");
    assert!(controller.namespace(Nsid(2)).is_err());
    drop(controller);
    let error = disk.read_at(&mut [0; 512], 0).unwrap_err();
    assert!(error.is_connection_lost(), "{error}");
    assert_eq!(target.with(|stub, _| (stub.shutdowns, stub.disconnect_commands)), (1, 1));
}

#[test]
fn the_end_does_not_wait_for_a_call_that_hangs() {
    let target = Running::new(Knobs { mute_io: Some(IoOpcode::READ.0), ..Knobs::default() });
    let options = ConnectOptions { kato: Duration::ZERO, ..target.options() };
    let controller = Controller::connect(options).unwrap();
    let disk = controller.only_namespace().unwrap();
    let call = std::thread::spawn(move || disk.read_at(&mut [0; 512], 0));
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    drop(controller);
    // It would be the time for an I/O command, 30 s.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let error = call.join().unwrap().unwrap_err();
    assert!(error.is_connection_lost(), "{error}");
}

#[test]
fn what_the_controller_says_of_itself_is_kept_to() {
    let keyed = SglSupport::SUPPORTED | SglSupport::KEYED;
    let target = Running::new(Knobs { sgls: keyed, max_commands: 3, ..Knobs::default() });
    let controller = Controller::connect(target.options()).unwrap();
    assert_eq!(controller.io_queue().unwrap().depth(), 3);
    let disk = controller.only_namespace().unwrap();
    disk.write_at(&pattern(512), 0).unwrap();
    let (in_capsule, bytes) =
        target.with(|stub, _| (stub.in_capsule_writes, stub.disk[..512].to_vec()));
    assert_eq!((in_capsule, bytes), (0, pattern(512)));
}

#[test]
fn queues_of_several_threads() {
    let target = Running::new(Knobs::default());
    let options = ConnectOptions { queues: 2, ..target.options() };
    let controller = Controller::connect(options).unwrap();
    let geometry = controller.only_namespace().unwrap().geometry();
    std::thread::scope(|scope| {
        for half in 0..2_u64 {
            let mut queue = controller.io_queue().unwrap();
            scope.spawn(move || {
                let pool = BufferPool::new(32, 4096).unwrap();
                queue.register(pool.memory()).unwrap();
                let mut done = Vec::new();
                let at = |index: u64| (half * 256 + index) * 4096;
                for round in 0..2 {
                    let (mut next, mut ended) = (0, 0);
                    while ended < 256 {
                        while next < 256 && queue.outstanding() < queue.depth() {
                            let Some(mut buffer) = pool.take() else { break };
                            let byte = u8::try_from(next).unwrap() ^ 0x5a;
                            if round == 0 {
                                buffer.write(0, &[byte; 4096]).unwrap();
                                queue.submit_write(next, geometry, at(next), buffer, false)
                            } else {
                                queue.submit_read(next, geometry, at(next), buffer)
                            }
                            .unwrap();
                            next += 1;
                        }
                        queue.wait(&mut done, Duration::from_secs(5));
                        for completion in done.drain(..) {
                            completion.result.unwrap();
                            ended += 1;
                            let byte = u8::try_from(completion.user_data).unwrap() ^ 0x5a;
                            let buffer = completion.buffer.unwrap();
                            assert_eq!(buffer.to_vec(), vec![byte; 4096]);
                        }
                    }
                }
            });
        }
    });
    // Both queues are free again.
    let _one = controller.io_queue().unwrap();
    let _two = controller.io_queue().unwrap();
}

#[test]
fn own_memory_raw_commands_and_refusals() {
    let target = Running::new(Knobs { bad_block: Some(9), ..Knobs::default() });
    let controller = Controller::connect(target.options()).unwrap();
    let geometry = controller.only_namespace().unwrap().geometry();
    let mut queue = controller.io_queue().unwrap();
    let memory = Memory::allocate(1 << 16).unwrap();
    let mut done = Vec::new();
    queue.submit_read(1, geometry, 9 * 512, Buffer::over(&memory, 512, 512).unwrap()).unwrap();
    assert_eq!(queue.wait(&mut done, Duration::from_secs(5)), 1);
    let error = done.pop().unwrap().result.unwrap_err();
    assert!(error.status().unwrap().same_code(Status::UNRECOVERED_READ_ERROR), "{error}");
    let mut command = Command::new(2).with_nsid(Nsid(1));
    command.cdw10.set(8192);
    let buffer = Buffer::over(&memory, 0, 512).unwrap();
    queue.submit_raw(2, command, RawData::ToHost(buffer)).unwrap();
    queue.wait(&mut done, Duration::from_secs(5));
    let error = done.pop().unwrap().result.unwrap_err();
    assert!(error.status().unwrap().same_code(Status::LBA_OUT_OF_RANGE), "{error}");
    // A refused request gives its buffer back.
    let buffer = Buffer::over(&memory, 0, 100).unwrap();
    let rejected = queue.submit_read(3, geometry, 0, buffer).unwrap_err();
    assert_eq!(rejected.buffer.unwrap().len(), 100);
    assert_eq!(queue.wait(&mut done, Duration::from_secs(5)), 0);
}

#[test]
fn an_idle_owner_does_not_lose_his_queue() {
    let target = Running::new(Knobs::default());
    let controller = Controller::connect(target.options()).unwrap();
    let geometry = controller.only_namespace().unwrap().geometry();
    let mut queue = controller.io_queue().unwrap();
    let pool = BufferPool::new(1, 4096).unwrap();
    let mut done = Vec::new();
    for _ in 0..2 {
        queue.submit_read(1, geometry, 0, pool.take().unwrap()).unwrap();
        queue.ring();
        // Nobody polls: acknowledgements and the completion are looked after all the same.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(queue.poll(&mut done), 1);
        done.pop().unwrap().result.unwrap();
    }
    // The answers of the target would be sent again and again if nobody acknowledged them. A machine
    // with other work may be late once.
    assert!(queue.counters().retransmissions <= 2, "{:?}", queue.counters());
}

#[test]
fn a_frozen_target_is_reported_in_time() {
    let mut target = Running::new(Knobs::default());
    let options = ConnectOptions {
        io_timeout: Duration::from_secs(1),
        kato: Duration::from_secs(2),
        ..target.options()
    };
    let controller = Controller::connect(options).unwrap();
    let disk = controller.only_namespace().unwrap();
    disk.read_at(&mut [0; 512], 0).unwrap();
    target.freeze();
    let start = Instant::now();
    let error = disk.read_at(&mut [0; 512], 0).unwrap_err();
    assert!(matches!(error, IoError::TimedOut { opcode: 2, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_millis(1300), "{:?}", start.elapsed());
    while controller.lost().is_none() {
        assert!(start.elapsed() < Duration::from_secs(4));
        std::thread::sleep(Duration::from_millis(10));
    }
    let start = Instant::now();
    drop(controller);
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
}

#[test]
fn a_target_that_leaves_is_reported_at_once() {
    let target = Running::new(Knobs { mute_io: Some(2), ..Knobs::default() });
    let controller = Controller::connect(target.options()).unwrap();
    let geometry = controller.only_namespace().unwrap().geometry();
    let mut queue = controller.io_queue().unwrap();
    let pool = BufferPool::new(4, 4096).unwrap();
    let mut done = Vec::new();
    for user_data in 0..4 {
        queue.submit_read(user_data, geometry, 0, pool.take().unwrap()).unwrap();
    }
    assert_eq!(queue.wait(&mut done, Duration::from_millis(50)), 0);
    target.with(|stub, now| stub.hang_up(now));
    let start = Instant::now();
    while done.len() < 4 {
        queue.wait(&mut done, Duration::from_secs(5));
    }
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    for completion in done {
        let error = completion.result.unwrap_err();
        assert!(matches!(error, IoError::ConnectionLost { reason: LossReason::Peer }), "{error}");
    }
}

#[test]
fn nobody_there() {
    let address = own_address();
    let options = ConnectOptions {
        connect_timeout: Duration::from_millis(800),
        ..ConnectOptions::new(address, name())
    };
    let start = Instant::now();
    let error = Error::from(Controller::connect(options).unwrap_err());
    assert!(start.elapsed() < Duration::from_millis(1200), "{:?}", start.elapsed());
    assert!(error.to_string().contains("is the target running"), "{error}");
}

/// IPv6 has one loopback address. Where somebody else holds its well-known port, a peer that is not
/// ours answers there and not to us: the error says who that is and what to do.
#[test]
fn silence_beside_a_taken_port_is_explained() {
    let start = Instant::now();
    let _holder = loop {
        match std::net::UdpSocket::bind("[::1]:4791") {
            Ok(socket) => break socket,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let subsystem = Nqn::parse(SUBSYSTEM).unwrap();
    let mut options = ConnectOptions::new("[::1]:4420".parse().unwrap(), subsystem);
    options.connect_timeout = Duration::from_millis(300);
    let error = Controller::connect(options).err().unwrap();
    let mut words = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = next {
        words = format!("{words}{error}\n");
        next = error.source();
    }
    let own = format!("4791 of ::1 is held by process {}", std::process::id());
    assert!(words.contains("no answer") && words.contains(&own), "{words}");
}
