//! Moves bytes between a queue and a stream with many requests in flight. The stream's side (its
//! reading or writing, and the checksum) runs in a thread; the two threads pass chunks. Calls the
//! library; called by `copy`.

use core::time::Duration;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use lariat::{Buffer, BufferPool, Geometry, IoQueue, Namespace};

use super::progress::Progress;
use super::range::{WritePlan, partial};
use crate::failure::{Interrupted, stdout_error};
use crate::signals::Stop;

/// How long to wait before looking for signals and at the other thread again.
const LOOK: Duration = Duration::from_millis(20);

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes of the stream.
    pub(crate) bytes: u64,
    /// Their checksum, that of zip and `crc32`.
    pub(crate) crc32: u32,
}

/// How to move.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) geometry: Geometry,
    /// First byte on the namespace.
    pub(crate) offset: u64,
    /// Bytes of each request, whole blocks.
    pub(crate) request_bytes: usize,
    /// Requests in flight.
    pub(crate) depth: u32,
    pub(crate) stop: &'a Stop,
    pub(crate) progress: &'a Progress,
}

impl Job<'_> {
    fn pool(&self) -> Result<BufferPool> {
        let count = usize::try_from(self.depth)?;
        BufferPool::new(count, self.request_bytes).context("no memory for the buffers")
    }

    fn stopped(&self, verb: &str, bytes: u64) -> anyhow::Error {
        Interrupted(format!("interrupted after {bytes} bytes were {verb}")).into()
    }

    /// Reads `length` bytes (whole blocks) into a stream, in order.
    pub(crate) fn read(
        &self,
        queue: &mut IoQueue,
        length: u64,
        output: Box<dyn Write + Send>,
        to_stdout: bool,
    ) -> Result<Moved> {
        let pool = self.pool()?;
        let chunk = u64::try_from(self.request_bytes)?;
        let chunks = length.div_ceil(chunk);
        let mut sink = Sink::start(output, to_stdout, usize::try_from(self.depth)?)?;
        let mut window: VecDeque<Option<Buffer>> = VecDeque::with_capacity(sink.depth);
        // Chunks `written..asked` are in the window.
        let (mut asked, mut written) = (0u64, 0u64);
        let mut done = Vec::with_capacity(sink.depth);
        while written < chunks {
            if self.stop.requested() {
                return Err(self.stopped("read", written * chunk));
            }
            while asked < chunks
                && let Some(mut buffer) = pool.take()
            {
                let at = asked * chunk;
                buffer.set_len(usize::try_from(chunk.min(length - at))?);
                queue
                    .submit_read(asked, self.geometry, self.offset + at, buffer)
                    .map_err(|rejected| rejected.error)
                    .with_context(|| format!("read at byte {}", self.offset + at))?;
                window.push_back(None);
                asked += 1;
            }
            queue.wait(&mut done, LOOK);
            for ended in done.drain(..) {
                let at = self.offset + ended.user_data * chunk;
                ended.result.with_context(|| format!("read at byte {at}"))?;
                let slot = usize::try_from(ended.user_data - written)
                    .ok()
                    .and_then(|index| window.get_mut(index));
                if let Some(slot) = slot {
                    *slot = ended.buffer;
                }
            }
            while let Some(Some(buffer)) = window.front() {
                let Some(mut bytes) = sink.spare()? else { break };
                bytes.resize(buffer.len(), 0);
                buffer.read(0, &mut bytes).context("a buffer is shorter than it says")?;
                self.progress.add(u64::try_from(bytes.len())?);
                sink.give(bytes)?;
                window.pop_front();
                written += 1;
            }
        }
        sink.end()
    }

    /// Writes a stream, then flushes.
    pub(crate) fn write(
        &self,
        queue: &mut IoQueue,
        disk: &Namespace,
        plan: &WritePlan,
        input: Box<dyn Read + Send>,
    ) -> Result<Moved> {
        let pool = self.pool()?;
        let source = Source::start(input, plan.limit, self.request_bytes, self.depth)?;
        let block = u64::from(self.geometry.block_bytes);
        let mut moved = Moved::default();
        let mut ended = false;
        let mut ready: Option<Buffer> = None;
        let mut done = Vec::with_capacity(usize::try_from(self.depth)?);
        loop {
            if self.stop.requested() {
                self.settle(queue, &mut done)?;
                return Err(self.stopped("written", moved.bytes));
            }
            if ready.is_none() {
                ready = pool.take();
            }
            // Wait for the input only where there is nothing else to wait for.
            while !ended && ready.is_some() {
                let patience = if queue.outstanding() == 0 { LOOK } else { Duration::ZERO };
                let Some(next) = source.next(patience)? else { break };
                let (mut bytes, crc32) = match next {
                    Next::Chunk(bytes, crc32) => (bytes, crc32),
                    Next::End => {
                        ended = true;
                        break;
                    }
                };
                let length = u64::try_from(bytes.len())?;
                if length > plan.room - moved.bytes {
                    self.settle(queue, &mut done)?;
                    return Err(anyhow!(
                        "the input is longer than the {} bytes from --offset {} to the namespace's \
                         end; {} bytes were written",
                        plan.room,
                        self.offset,
                        moved.bytes
                    ));
                }
                let at = self.offset + moved.bytes;
                if !length.is_multiple_of(block) {
                    if !plan.pad {
                        self.settle(queue, &mut done)?;
                        let whole = moved.bytes;
                        return Err(partial(whole + length, self.geometry)
                            .context(format!("{whole} bytes were written")));
                    }
                    merge_tail(disk, block, at, &mut bytes)?;
                }
                let Some(mut buffer) = ready.take() else { break };
                buffer.set_len(bytes.len());
                buffer.write(0, &bytes).context("a chunk is longer than a buffer")?;
                queue
                    .submit_write(at, self.geometry, at, buffer, false)
                    .map_err(|rejected| rejected.error)
                    .with_context(|| format!("write at byte {at}"))?;
                moved = Moved { bytes: moved.bytes + length, crc32 };
                source.recycle(bytes);
                ready = pool.take();
            }
            if ended && queue.outstanding() == 0 {
                break;
            }
            // With a buffer in hand the next chunk may come at any moment.
            let patience = if ready.is_some() && !ended { LOOK / 20 } else { LOOK };
            queue.wait(&mut done, patience);
            self.take(&mut done)?;
        }
        if moved.bytes == 0 {
            return Err(anyhow!("the input is empty: nothing was written"));
        }
        disk.flush().context("flush")?;
        match plan.limit {
            Some(limit) if limit > moved.bytes => Err(anyhow!(
                "the input ended after {} of {limit} bytes (--length); those are written and flushed",
                moved.bytes
            )),
            _ => Ok(moved),
        }
    }

    fn take(&self, done: &mut Vec<lariat::IoCompletion>) -> Result<()> {
        for ended in done.drain(..) {
            ended.result.with_context(|| format!("write at byte {}", ended.user_data))?;
            let length = ended.buffer.as_ref().map_or(0, Buffer::len);
            self.progress.add(u64::try_from(length)?);
        }
        Ok(())
    }

    /// Waits for what is in flight.
    fn settle(&self, queue: &mut IoQueue, done: &mut Vec<lariat::IoCompletion>) -> Result<()> {
        while queue.outstanding() > 0 {
            queue.wait(done, LOOK);
            self.take(done)?;
        }
        Ok(())
    }
}

/// Completes a last partial block with what the namespace holds there.
fn merge_tail(disk: &Namespace, block: u64, at: u64, bytes: &mut Vec<u8>) -> Result<()> {
    let length = u64::try_from(bytes.len())?;
    let tail = length % block;
    let mut old = vec![0; usize::try_from(block)?];
    let start = at + length - tail;
    disk.read_at(&mut old, start).with_context(|| format!("read at byte {start}, to pad"))?;
    bytes.extend_from_slice(old.get(usize::try_from(tail)?..).unwrap_or_default());
    Ok(())
}

enum Next {
    /// Bytes, and the checksum of all up to their end.
    Chunk(Vec<u8>, u32),
    End,
}

/// A thread that reads a stream in chunks.
struct Source {
    chunks: Receiver<io::Result<Next>>,
    spare: SyncSender<Vec<u8>>,
}

impl Source {
    fn start(
        mut input: Box<dyn Read + Send>,
        limit: Option<u64>,
        chunk_bytes: usize,
        depth: u32,
    ) -> Result<Self> {
        let depth = usize::try_from(depth)?;
        let (send, chunks) = sync_channel(depth);
        let (spare, spares) = sync_channel::<Vec<u8>>(depth);
        // Ends with its input, or when nobody wants chunks any more; it may be stuck in a read of
        // stdin then, so it is not waited for.
        let reader = move || {
            let mut hasher = crc32fast::Hasher::new();
            let mut left = limit.unwrap_or(u64::MAX);
            loop {
                let mut bytes = spares.try_recv().unwrap_or_default();
                bytes.clear();
                let most = left.min(u64::try_from(chunk_bytes).unwrap_or(u64::MAX));
                let read = input.by_ref().take(most).read_to_end(&mut bytes);
                hasher.update(&bytes);
                left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(0));
                let next = match read {
                    Ok(0) => Ok(Next::End),
                    Ok(_) => Ok(Next::Chunk(bytes, hasher.clone().finalize())),
                    Err(error) => Err(error),
                };
                let last = !matches!(next, Ok(Next::Chunk(..)));
                if send.send(next).is_err() || last {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("input".into())
            .spawn(reader)
            .context("cannot start a thread")?;
        Ok(Self { chunks, spare })
    }

    /// The next chunk, if it comes in time.
    fn next(&self, patience: Duration) -> Result<Option<Next>> {
        match self.chunks.recv_timeout(patience) {
            Ok(next) => next.map(Some).context("cannot read the input"),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(anyhow!("the input's thread died")),
        }
    }

    fn recycle(&self, bytes: Vec<u8>) {
        let _ = self.spare.try_send(bytes);
    }
}

/// A thread that writes a stream in chunks.
struct Sink {
    chunks: Option<SyncSender<Vec<u8>>>,
    spare: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<Result<Moved>>>,
    depth: usize,
}

impl Sink {
    fn start(mut output: Box<dyn Write + Send>, to_stdout: bool, depth: usize) -> Result<Self> {
        let (chunks, receive) = sync_channel::<Vec<u8>>(depth);
        let (give_back, spare) = sync_channel(depth);
        for _ in 0..depth {
            give_back.try_send(Vec::new()).map_err(|_| anyhow!("the output's queue is full"))?;
        }
        let writer = move || {
            let mut hasher = crc32fast::Hasher::new();
            let mut bytes = 0u64;
            let failed = |error: io::Error| {
                if to_stdout {
                    stdout_error(error)
                } else {
                    anyhow::Error::new(error).context("cannot write the output")
                }
            };
            for chunk in receive {
                hasher.update(&chunk);
                output.write_all(&chunk).map_err(failed)?;
                bytes += u64::try_from(chunk.len())?;
                let _ = give_back.try_send(chunk);
            }
            output.flush().map_err(failed)?;
            Ok(Moved { bytes, crc32: hasher.finalize() })
        };
        let thread = std::thread::Builder::new()
            .name("output".into())
            .spawn(writer)
            .context("cannot start a thread")?;
        Ok(Self { chunks: Some(chunks), spare, thread: Some(thread), depth })
    }

    /// An empty chunk; `None` when the output is slow and other work may be due.
    fn spare(&mut self) -> Result<Option<Vec<u8>>> {
        match self.spare.try_recv() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(TryRecvError::Empty) => match self.spare.recv_timeout(Duration::from_millis(1)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(self.failed()),
            },
            Err(TryRecvError::Disconnected) => Err(self.failed()),
        }
    }

    fn give(&mut self, bytes: Vec<u8>) -> Result<()> {
        let given = self.chunks.as_ref().is_some_and(|chunks| chunks.send(bytes).is_ok());
        if given { Ok(()) } else { Err(self.failed()) }
    }

    /// Waits until all is written.
    fn end(mut self) -> Result<Moved> {
        self.chunks = None;
        self.join()
    }

    fn join(&mut self) -> Result<Moved> {
        let Some(thread) = self.thread.take() else {
            return Err(anyhow!("the output has failed"));
        };
        thread.join().unwrap_or_else(|_| Err(anyhow!("the output's thread died")))
    }

    fn failed(&mut self) -> anyhow::Error {
        self.chunks = None;
        self.join().err().unwrap_or_else(|| anyhow!("the output ended early"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn drain(source: &Source) -> (Vec<usize>, u32) {
        let (mut lengths, mut sum) = (Vec::new(), 0);
        loop {
            match source.next(Duration::from_secs(10)).unwrap().unwrap() {
                Next::Chunk(bytes, crc32) => {
                    lengths.push(bytes.len());
                    sum = crc32;
                    source.recycle(bytes);
                }
                Next::End => return (lengths, sum),
            }
        }
    }

    #[test]
    fn a_source_gives_full_chunks_up_to_its_limit() {
        let data = vec![7u8; 10_000];
        let source = Source::start(Box::new(io::Cursor::new(data.clone())), None, 4096, 2).unwrap();
        assert_eq!(drain(&source), (vec![4096, 4096, 1808], crc32fast::hash(&data)));
        let source =
            Source::start(Box::new(io::Cursor::new(data.clone())), Some(5000), 4096, 2).unwrap();
        assert_eq!(drain(&source), (vec![4096, 904], crc32fast::hash(&data[..5000])));
    }

    #[test]
    fn a_sink_keeps_order_and_sums() {
        let shared = Shared::default();
        let mut sink = Sink::start(Box::new(shared.clone()), false, 2).unwrap();
        for byte in 0..50 {
            let mut chunk = loop {
                if let Some(chunk) = sink.spare().unwrap() {
                    break chunk;
                }
            };
            chunk.clear();
            chunk.resize(100, byte);
            sink.give(chunk).unwrap();
        }
        let moved = sink.end().unwrap();
        let data = shared.0.lock().unwrap();
        assert_eq!(moved, Moved { bytes: 5000, crc32: crc32fast::hash(&data) });
        assert!(data.is_sorted());
    }

    #[test]
    fn an_output_that_fails_is_told() {
        for (to_stdout, kind, closed) in
            [(true, io::ErrorKind::BrokenPipe, true), (false, io::ErrorKind::StorageFull, false)]
        {
            let mut sink = Sink::start(Box::new(Broken(kind)), to_stdout, 1).unwrap();
            sink.give(vec![1; 10]).unwrap();
            let error = loop {
                match sink.spare() {
                    Ok(Some(chunk)) if !chunk.is_empty() => panic!("it did not fail"),
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(error.is::<crate::failure::PipeClosed>(), closed, "{error:#}");
        }
    }
}
