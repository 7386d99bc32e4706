//! What a host asks for: requests drawn from the seed, what the model is told of them, and whether
//! an answer may be what it is. Called by `host`.

use lariat::core::{Failure, Geometry, IoFailure, IoRequest, Operation};
use lariat_fabric::Timestamp;
use lariat_wire::nvme::{CommandId, IoCommand, Lba, Nsid, ProtectionAction, Status};

use super::content::{SECTOR_BYTES, Value, fill};
use super::model::{Model, Span, Tick, WriteEnd};
use super::plan::HostPlan;
use super::random::Rng;
use super::trace::Trace;

/// A namespace, as the host has to find it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) geometry: Geometry,
    /// Whether a deallocation makes zeroes.
    pub(super) deallocates: bool,
}

/// What a request is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Read(Span),
    Write(Span, bool),
    Zero(Span, bool),
    Flush(usize, Tick),
    FlushAll(Tick),
    /// A deallocation that the disk cannot follow: nothing changes.
    Advice,
    /// To be refused with this status.
    Bad(Status),
}

/// How a request is handed over.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Request(Operation, Geometry, u64, u64),
    Raw(IoCommand, RawData),
}

/// The data of a raw command.
#[derive(Clone, Copy, Debug)]
pub(super) enum RawData {
    None,
    ToHost(u32),
    FromHost(u32),
}

/// A request that is made up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub(super) form: Form,
    /// Bytes of data.
    pub(super) bytes: u32,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read,
    Write(bool),
    Zero(bool),
    Flush,
    FlushAll,
    Advice,
    Bad(Status),
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) slot: usize,
    pub(super) submitted: Timestamp,
    /// Commands it takes, about.
    pub(super) commands: u32,
}

impl Draft {
    /// A random request.
    pub(super) fn random(
        rng: &mut Rng,
        plan: &HostPlan,
        spaces: &[Space],
        mdts_bytes: u32,
    ) -> Self {
        let Space { geometry, deallocates } = rng.pick(spaces);
        if rng.percent(6) {
            return Self::bad(rng, geometry, mdts_bytes);
        }
        let block = u64::from(geometry.block_bytes);
        let most = (u64::from(plan.request_bytes) / block).clamp(1, geometry.blocks);
        let blocks = match rng.below(10) {
            0..=3 => 1,
            4..=7 => rng.range(1, most.min(8)),
            _ => rng.range(1, most),
        };
        // Some places are more popular, so that requests meet.
        let last = geometry.blocks - blocks;
        let start = if rng.percent(50) { rng.below(last.min(8) + 1) } else { rng.range(0, last) };
        let bytes = u32::try_from(blocks * block).unwrap_or(u32::MAX);
        let request = |operation, bytes, what| Self {
            form: Form::Request(operation, geometry, start, blocks),
            bytes,
            what,
        };
        if rng.percent(plan.read_percent) {
            return request(Operation::Read, bytes, What::Read);
        }
        match rng.below(20) {
            0..=10 => request(Operation::Write { fua: false }, bytes, What::Write(false)),
            11..=13 => request(Operation::Write { fua: true }, bytes, What::Write(true)),
            14 => {
                let (deallocate, fua) = (rng.percent(50), rng.percent(30));
                request(Operation::WriteZeroes { deallocate, fua }, 0, What::Zero(fua))
            }
            15 if deallocates => request(Operation::Deallocate, 0, What::Zero(false)),
            15 => request(Operation::Deallocate, 0, What::Advice),
            16 => Self {
                form: Form::Raw(IoCommand::Flush { nsid: Nsid::ALL }, RawData::None),
                bytes: 0,
                what: What::FlushAll,
            },
            _ => request(Operation::Flush, 0, What::Flush),
        }
    }

    /// A read of these blocks.
    pub(super) fn read(geometry: Geometry, start: u64, blocks: u64) -> Self {
        let bytes = blocks * u64::from(geometry.block_bytes);
        Self {
            form: Form::Request(Operation::Read, geometry, start, blocks),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            what: What::Read,
        }
    }

    /// A request that has to be refused.
    fn bad(rng: &mut Rng, geometry: Geometry, mdts_bytes: u32) -> Self {
        let read = |nsid, slba, blocks| IoCommand::Read {
            nsid,
            slba: Lba(slba),
            blocks,
            fua: false,
            limited_retry: false,
            prinfo: ProtectionAction::NONE,
            access_hints: 0,
        };
        let write = |nsid, slba, blocks| IoCommand::Write {
            nsid,
            slba: Lba(slba),
            blocks,
            fua: false,
            limited_retry: false,
            prinfo: ProtectionAction::NONE,
            access_hints: 0,
            directive_type: 0,
            directive_specific: 0,
        };
        let Geometry { nsid, block_bytes, blocks } = geometry;
        let (command, data, status) = match rng.below(6) {
            0 => (read(nsid, blocks, 1), RawData::ToHost(block_bytes), Status::LBA_OUT_OF_RANGE),
            1 => {
                let last = u64::MAX - rng.below(3);
                (write(nsid, last, 1), RawData::FromHost(block_bytes), Status::LBA_OUT_OF_RANGE)
            }
            2 => {
                let many = mdts_bytes / block_bytes + 1;
                let data = RawData::FromHost(many * block_bytes);
                (write(nsid, 0, many), data, Status::INVALID_FIELD)
            }
            3 => {
                let data = RawData::ToHost(block_bytes);
                (read(Nsid(77), 0, 1), data, Status::INVALID_NAMESPACE_OR_FORMAT)
            }
            4 => {
                let data = RawData::FromHost(block_bytes - 16);
                (write(nsid, 0, 1), data, Status::DATA_SGL_LENGTH_INVALID)
            }
            _ => (read(nsid, 0, 1), RawData::None, Status::DATA_SGL_LENGTH_INVALID),
        };
        let bytes = match data {
            RawData::None => 0,
            RawData::ToHost(bytes) | RawData::FromHost(bytes) => bytes,
        };
        Self { form: Form::Raw(command, data), bytes, what: What::Bad(status) }
    }

    /// The request, for the block queue; `None` for raw commands.
    pub(super) fn request(&self, data: Option<lariat::core::DataRef>) -> Option<IoRequest> {
        let Form::Request(operation, geometry, start, blocks) = self.form else { return None };
        Some(IoRequest { operation, geometry, start: Lba(start), blocks, data })
    }

    /// The raw command.
    pub(super) fn command(&self) -> Option<lariat_wire::nvme::Command> {
        let Form::Raw(command, _) = self.form else { return None };
        command.to_command(CommandId(0)).ok()
    }

    /// The bytes that a write sends; `None` for others.
    pub(super) fn data(&self, value: Value) -> Option<Vec<u8>> {
        let (Form::Request(_, geometry, start, _), What::Write(_)) = (self.form, self.what) else {
            return None;
        };
        let mut data = vec![0; self.bytes as usize];
        let first = start * u64::from(geometry.block_bytes) / SECTOR_BYTES as u64;
        for (sector, bytes) in (first..).zip(data.chunks_mut(SECTOR_BYTES)) {
            fill(value, geometry.nsid.0, sector, bytes);
        }
        Some(data)
    }

    /// Tells the model that it is submitted.
    pub(super) fn begin(&self, model: &mut Model, value: Value) -> Kind {
        let (space, sector, count) = match self.form {
            Form::Request(_, geometry, start, blocks) => {
                let sectors = u64::from(geometry.block_bytes) / SECTOR_BYTES as u64;
                (geometry.nsid.0 as usize - 1, start * sectors, blocks * sectors)
            }
            Form::Raw(..) => (0, 0, 0),
        };
        match self.what {
            What::Read => Kind::Read(model.begin_read(space, sector, count)),
            What::Write(fua) => Kind::Write(model.begin_write(space, sector, count, value), fua),
            What::Zero(fua) => {
                Kind::Zero(model.begin_write(space, sector, count, Value::ZERO), fua)
            }
            What::Flush => Kind::Flush(space, model.begin_flush()),
            What::FlushAll => Kind::FlushAll(model.begin_flush()),
            What::Advice => Kind::Advice,
            What::Bad(status) => Kind::Bad(status),
        }
    }
}

impl Op {
    /// Whether it can tell that the data was placed.
    pub(super) fn reads(&self) -> Option<u64> {
        match self.kind {
            Kind::Read(span) => Some(span.count * SECTOR_BYTES as u64),
            _ => None,
        }
    }

    /// Takes the result, tells the model, and says what is wrong with it.
    ///
    /// # Errors
    /// What cannot be.
    pub(super) fn finish(
        &self,
        result: Result<u64, IoFailure>,
        data: &[u8],
        model: &mut Model,
        trace: &mut Trace,
        spaces: usize,
    ) -> Result<(), String> {
        if let (Kind::Bad(expected), Ok(_)) = (self.kind, result) {
            return Err(format!("a request succeeded that had to fail with {expected}"));
        }
        match result {
            Ok(_) => self.succeed(data, model, trace, spaces),
            Err(IoFailure { failure: Failure::Status(status), .. }) => {
                self.fail(status, model, trace)
            }
            Err(IoFailure { failure: Failure::Lost(_), .. }) => {
                trace.count("request: lost with its connection");
                match self.kind {
                    Kind::Read(span) => model.end_read(span),
                    Kind::Write(span, _) | Kind::Zero(span, _) => {
                        trace.count("request: write of unknown outcome");
                        model.end_write(span, WriteEnd::Lost);
                    }
                    Kind::Flush(..) | Kind::FlushAll(_) | Kind::Advice | Kind::Bad(_) => {}
                }
                Ok(())
            }
            Err(IoFailure { failure: Failure::NotSent(why), .. }) => {
                Err(format!("{:?} was taken and then not sent: {why}", self.kind))
            }
        }
    }

    fn succeed(
        &self,
        data: &[u8],
        model: &mut Model,
        trace: &mut Trace,
        spaces: usize,
    ) -> Result<(), String> {
        match self.kind {
            Kind::Read(span) => {
                trace.count("request: read");
                model.check_read(span, data).map_err(|wrong| wrong.to_string())?;
            }
            Kind::Write(span, fua) => {
                trace.count(if fua { "request: forced write" } else { "request: write" });
                model.end_write(span, WriteEnd::Done { fua });
            }
            Kind::Zero(span, fua) => {
                trace.count("request: zeroes or deallocation");
                model.end_write(span, WriteEnd::Done { fua });
            }
            Kind::Flush(space, tick) => {
                trace.count("request: flush");
                model.end_flush(space, tick);
            }
            Kind::FlushAll(tick) => {
                trace.count("request: flush of all namespaces");
                for space in 0..spaces {
                    model.end_flush(space, tick);
                }
            }
            Kind::Advice => trace.count("request: deallocation without effect"),
            Kind::Bad(_) => {}
        }
        if self.commands > 1 {
            trace.count("request: needed several commands");
        }
        Ok(())
    }

    fn fail(&self, status: Status, model: &mut Model, trace: &mut Trace) -> Result<(), String> {
        let media = |allowed: &[Status]| {
            if allowed.iter().any(|allowed| status.same_code(*allowed)) {
                Ok(())
            } else {
                Err(format!("{:?} ended with {status}", self.kind))
            }
        };
        match self.kind {
            Kind::Bad(expected) => {
                trace.count("request: refused as it should be");
                return if status.same_code(expected) && status.dnr() {
                    Ok(())
                } else {
                    Err(format!("a bad request got {status} for {expected} (and Do Not Retry)"))
                };
            }
            Kind::Read(span) => {
                model.end_read(span);
                media(&[Status::UNRECOVERED_READ_ERROR])?;
            }
            Kind::Write(span, _) | Kind::Zero(span, _) => {
                model.end_write(span, WriteEnd::Failed);
                media(&[Status::WRITE_FAULT, Status::CAPACITY_EXCEEDED])?;
            }
            Kind::Flush(..) | Kind::FlushAll(_) => media(&[Status::WRITE_FAULT])?,
            Kind::Advice => media(&[])?,
        }
        trace.count(MEDIA_ERROR);
        Ok(())
    }
}

/// Counts requests that the disk let fail.
pub(super) const MEDIA_ERROR: &str = "request: failed on the disk";
