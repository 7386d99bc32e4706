//! Features: Get and Set (NVMe Base 2.1, 5.1.11, 5.1.25; NVM Command Set 1.1, 4.1.3). None can be
//! saved; a reset brings the defaults back, but for the keep-alive timeout, which belongs to the
//! connection. Called by `controller`.

use lariat_fabric::Timestamp;
use lariat_wire::nvme::feature::{
    AsyncEventConfig, ErrorRecovery, HOST_IDENTIFIER_EXTENDED, KeepAliveTimer, NumberOfQueues,
    PowerManagement, TemperatureThreshold, VolatileWriteCache, WriteAtomicity, is_controller_wide,
};
use lariat_wire::nvme::identify::AsyncEventSupport;
use lariat_wire::nvme::{FeatureId, FeatureSelect, Nsid, Status};

use super::attachment::ControllerShared;
use super::keep_alive::KEEP_ALIVE_UNITS;
use super::subsystem::Subsystem;

/// Supported Capabilities: the feature can be changed.
const CHANGEABLE: u32 = 1 << 2;
/// The timestamp's origin: a host set it.
const ORIGIN_HOST: u8 = 1 << 1;
/// No over-temperature threshold.
const NO_LIMIT: u32 = 0xffff;

/// Events that a controller of this subsystem can send, as OAES tells.
pub(super) const fn optional_events(subsystem: &Subsystem) -> u32 {
    if subsystem.is_discovery() { AsyncEventSupport::DISCOVERY_CHANGE } else { 0 }
}

/// The values of one controller's features.
#[derive(Debug)]
pub(super) struct Features {
    arbitration: u32,
    over_temperature: u32,
    under_temperature: u32,
    write_atomicity: u32,
    events: u32,
    keep_alive_ms: u32,
    /// Milliseconds since 1970 as the host said, and when it said so.
    timestamp: Option<(u64, Timestamp)>,
    started: Timestamp,
}

/// What Set Features carries beside the identifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetRequest {
    pub(super) fid: FeatureId,
    pub(super) save: bool,
    pub(super) nsid: Nsid,
    pub(super) cdw11: u32,
}

impl Features {
    pub(super) fn new(now: Timestamp, keep_alive_ms: u32) -> Self {
        Self {
            arbitration: 0,
            over_temperature: NO_LIMIT,
            under_temperature: 0,
            write_atomicity: 0,
            events: 0,
            keep_alive_ms: round_keep_alive(keep_alive_ms),
            timestamp: None,
            started: now,
        }
    }

    /// After a controller reset.
    pub(super) fn reset(&mut self, now: Timestamp) {
        *self = Self::new(now, self.keep_alive_ms);
    }

    /// The keep-alive timeout in milliseconds, 0 for none.
    pub(super) const fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms
    }

    /// Whether the host asked for this kind of event (a bit of the configuration).
    pub(super) const fn wants_event(&self, bit: u32) -> bool {
        self.events & bit != 0
    }

    /// Whether the feature exists on this controller.
    pub(super) fn is_supported(subsystem: &Subsystem, fid: FeatureId) -> bool {
        match fid {
            FeatureId::ASYNC_EVENT_CONFIG
            | FeatureId::KEEP_ALIVE_TIMER
            | FeatureId::HOST_IDENTIFIER => true,
            FeatureId::ARBITRATION
            | FeatureId::POWER_MANAGEMENT
            | FeatureId::TEMPERATURE_THRESHOLD
            | FeatureId::ERROR_RECOVERY
            | FeatureId::NUMBER_OF_QUEUES
            | FeatureId::WRITE_ATOMICITY
            | FeatureId::TIMESTAMP => !subsystem.is_discovery(),
            FeatureId::VOLATILE_WRITE_CACHE => subsystem.has_volatile_cache(),
            _ => false,
        }
    }

    /// Bytes that a Get of this feature sends to the host.
    pub(super) const fn get_bytes(fid: FeatureId, select: FeatureSelect) -> u32 {
        match fid {
            _ if select.0 == FeatureSelect::SUPPORTED_CAPABILITIES.0 => 0,
            FeatureId::HOST_IDENTIFIER => 16,
            FeatureId::TIMESTAMP => 8,
            _ => 0,
        }
    }

    /// Bytes that a Set of this feature takes from the host.
    pub(super) const fn set_bytes(fid: FeatureId) -> u32 {
        match fid {
            FeatureId::TIMESTAMP => 8,
            _ => 0,
        }
    }

    /// Get Features: result dword 0, and `data` where [`get_bytes`](Self::get_bytes) says so.
    pub(super) fn get(
        &self,
        now: Timestamp,
        subsystem: &Subsystem,
        shared: &ControllerShared,
        (fid, select, cdw11): (FeatureId, FeatureSelect, u32),
        data: &mut [u8],
    ) -> Result<u32, Status> {
        let defaults;
        let source = match select {
            FeatureSelect::CURRENT => self,
            // What cannot be saved has its default for saved value.
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => {
                defaults = Self::new(self.started, 0);
                &defaults
            }
            FeatureSelect::SUPPORTED_CAPABILITIES => return capabilities(subsystem, fid),
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        };
        if !Self::is_supported(subsystem, fid) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        match fid {
            FeatureId::ARBITRATION => Ok(source.arbitration),
            FeatureId::POWER_MANAGEMENT | FeatureId::ERROR_RECOVERY => Ok(0),
            FeatureId::TEMPERATURE_THRESHOLD => match threshold_kind(cdw11)? {
                Threshold::Over => Ok(source.over_temperature),
                Threshold::Under => Ok(source.under_temperature),
            },
            FeatureId::VOLATILE_WRITE_CACHE => {
                let current = select == FeatureSelect::CURRENT;
                Ok(u32::from(!current || shared.write_cache_enabled()))
            }
            FeatureId::NUMBER_OF_QUEUES => Ok(queue_counts(subsystem)),
            FeatureId::WRITE_ATOMICITY => Ok(source.write_atomicity),
            FeatureId::ASYNC_EVENT_CONFIG => Ok(source.events),
            FeatureId::KEEP_ALIVE_TIMER => Ok(source.keep_alive_ms),
            FeatureId::TIMESTAMP => {
                write_start(data, &source.timestamp_bytes(now));
                Ok(0)
            }
            FeatureId::HOST_IDENTIFIER if cdw11 & HOST_IDENTIFIER_EXTENDED != 0 => {
                write_start(data, &shared.host_id().0);
                Ok(0)
            }
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    /// Set Features: result dword 0. `data` is what [`set_bytes`](Self::set_bytes) asked for.
    pub(super) fn set(
        &mut self,
        now: Timestamp,
        subsystem: &Subsystem,
        shared: &ControllerShared,
        request: SetRequest,
        data: &[u8],
    ) -> Result<u32, Status> {
        let SetRequest { fid, save, nsid, cdw11 } = request;
        let invalid = Err(Status::INVALID_FIELD.with_dnr());
        if !Self::is_supported(subsystem, fid) {
            return invalid;
        }
        if save {
            return Err(Status::FEATURE_NOT_SAVEABLE.with_dnr());
        }
        if !is_controller_wide(nsid) {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr());
        }
        match fid {
            FeatureId::ARBITRATION => self.arbitration = cdw11,
            // There is one power state, and nothing to retry or to tell about deallocated blocks.
            FeatureId::POWER_MANAGEMENT if PowerManagement::from_dword(cdw11).state != 0 => {
                return invalid;
            }
            FeatureId::POWER_MANAGEMENT => {}
            FeatureId::ERROR_RECOVERY
                if ErrorRecovery::from_dword(cdw11) != ErrorRecovery::default() =>
            {
                return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
            }
            FeatureId::ERROR_RECOVERY => {}
            FeatureId::TEMPERATURE_THRESHOLD => match threshold_kind(cdw11)? {
                Threshold::Over => self.over_temperature = kelvins(cdw11),
                Threshold::Under => self.under_temperature = kelvins(cdw11),
            },
            FeatureId::VOLATILE_WRITE_CACHE => {
                shared.set_write_cache(VolatileWriteCache::from_dword(cdw11).enabled);
            }
            FeatureId::NUMBER_OF_QUEUES => {
                // FFFFh asks for 65,536 queues, which is one too many (5.1.25.2.1).
                if !NumberOfQueues::from_dword(cdw11).is_valid() {
                    return invalid;
                }
                if shared.queues() > 0 {
                    return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
                }
                return Ok(queue_counts(subsystem));
            }
            FeatureId::WRITE_ATOMICITY => {
                self.write_atomicity = WriteAtomicity::from_dword(cdw11).to_dword();
            }
            // Events that we never send may be asked for: nothing comes of it.
            FeatureId::ASYNC_EVENT_CONFIG => {
                self.events = cdw11 & (AsyncEventConfig::HEALTH | optional_events(subsystem));
            }
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive_ms = round_keep_alive(cdw11),
            FeatureId::TIMESTAMP => {
                let Some(&[a, b, c, d, e, f, _, _]) = data.first_chunk::<8>() else {
                    return invalid;
                };
                let host_ms = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
                self.timestamp = Some((host_ms, now));
            }
            // Over fabrics the Connect says who the host is.
            FeatureId::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            _ => return invalid,
        }
        Ok(0)
    }

    fn timestamp_bytes(&self, now: Timestamp) -> [u8; 8] {
        let (base_ms, since, attributes) = match self.timestamp {
            Some((host_ms, at)) => (host_ms, at, ORIGIN_HOST),
            None => (0, self.started, 0),
        };
        let elapsed_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
        let [a, b, c, d, e, f, ..] = base_ms.saturating_add(elapsed_ms).to_le_bytes();
        [a, b, c, d, e, f, attributes, 0]
    }
}

fn capabilities(subsystem: &Subsystem, fid: FeatureId) -> Result<u32, Status> {
    if !Features::is_supported(subsystem, fid) {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    Ok(match fid {
        FeatureId::HOST_IDENTIFIER | FeatureId::ERROR_RECOVERY => 0,
        _ => CHANGEABLE,
    })
}

fn kelvins(cdw11: u32) -> u32 {
    u32::from(TemperatureThreshold::from_dword(cdw11).kelvins)
}

enum Threshold {
    Over,
    Under,
}

/// Which threshold a command means: over or under, of the composite temperature (sensor 0) or of
/// all sensors (Fh), which is the same.
fn threshold_kind(cdw11: u32) -> Result<Threshold, Status> {
    let TemperatureThreshold { sensor, kind, .. } = TemperatureThreshold::from_dword(cdw11);
    match (sensor, kind) {
        (0 | 0xf, 0) => Ok(Threshold::Over),
        (0 | 0xf, 1) => Ok(Threshold::Under),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

/// Queues granted: always the limit.
fn queue_counts(subsystem: &Subsystem) -> u32 {
    NumberOfQueues::both(u32::from(subsystem.limits().max_queues)).to_dword()
}

/// To the granularity that KAS tells, upwards.
fn round_keep_alive(milliseconds: u32) -> u32 {
    let unit_ms = u32::from(KEEP_ALIVE_UNITS) * 100;
    KeepAliveTimer { timeout_ms: milliseconds }.rounded_up(unit_ms).timeout_ms
}

/// Copies `bytes` to the start of `data`, as much as fits.
pub(super) fn write_start(data: &mut [u8], bytes: &[u8]) {
    for (to, from) in data.iter_mut().zip(bytes) {
        *to = *from;
    }
}
